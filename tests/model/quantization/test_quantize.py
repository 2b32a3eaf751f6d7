"""The entry point on a small model: what it returns, what it counts, what it refuses."""

import pytest
import torch
from shapes import small_config

from model.quantization.calibration import Inputs, Walk, measure_kurtosis, observe
from model.quantization.layers import install
from model.quantization.outliers import Outliers, inject, kurtosis
from model.quantization.quantize import quantize_model
from model.quantization.rounding import minmax_scale, quantize_weight
from model.quantization.scales import clipped_scale
from model.quantization.scheme import QUERIES_AND_KEYS, Scheme

CONFIG = small_config(
    5, num_layers=2, first_dense_layers=1, hidden_size=24, q_latent=16, kv_latent=12, num_experts=4,
    experts_per_token=2, num_shared_experts=1, index_top_k=5, mtp_steps=2,
)  # fmt: skip
METHODS = ["minmax", "ssz", "smoothquant", "awq", "flex_awq_ssz", "gptq"]


@pytest.fixture
def model(make_model):
    return make_model(CONFIG, 3, indexer=True)


def tokens(rows: int = 4, length: int = 30) -> torch.Tensor:
    return torch.randint(CONFIG.vocab_size, (rows, length))


@torch.no_grad()
def outputs(model, batch):
    hidden = model(batch, attention="sparse").hidden_BTD
    states, _ = model.mtp_states(batch, hidden, steps=1, attention="sparse")
    return model.logits(hidden), model.draft_head(states[0])[:, :-1]


@pytest.mark.parametrize("rotation", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_the_float_model_keeps_its_function_and_the_tensors_are_its_weights(model, method, rotation):
    model.double()
    batch, scheme = tokens(), Scheme(method=method, rotation=rotation, min_tokens=8)
    before = outputs(model, batch)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    floats, tensors, facts = quantize_model(model, [batch], scheme)
    for a, b in zip(before, outputs(floats, batch), strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    state = floats.state_dict()
    assert {name: t.bits for name, t in tensors.items()} == {
        name: scheme.bits(name) for name in state if scheme.bits(name)
    }
    for name, each in tensors.items():
        error = (each.dequantize() - state[name]).norm() / state[name].norm()
        assert error < (0.25 if each.bits == 4 else 0.02), name
    assert facts["scheme"]["method"] == method and facts["tokens"] == 120
    assert all(sum(counts) == 240 for counts in facts["expert_tokens"].values())
    assert facts["kurtosis"].keys() == {"before", "after"}


@pytest.mark.parametrize("rotation", [False, True])
def test_awq_clips_by_what_the_smoothed_matrices_read_and_leaves_queries_and_keys(
    model, monkeypatch, rotation
):
    for module in ("scheme", "pairs", "quantize"):  # at 8 bits hardly anything is worth clipping
        monkeypatch.setattr(f"model.quantization.{module}.DENSE_BITS", 4)
    inject(model, Outliers(factor=32.0, share=0.1))
    batch = tokens()
    floats, tensors, _ = quantize_model(model, [batch], Scheme("awq", rotation, min_tokens=8))
    state, clipped = floats.state_dict(), {}
    for name, each in tensors.items():
        share = each.scale / minmax_scale(state[name], 4)
        assert share.max() < 1 + 1e-6 and share.min() > 0.55 - 1e-6
        clipped[name] = int((share < 0.99).sum())
    kept = {name for name in clipped if QUERIES_AND_KEYS.fullmatch(name)}
    assert len(kept) == 2 * 4 and not any(clipped[name] for name in kept)
    assert all(clipped[name] > 5 for name in clipped.keys() - kept)
    # The first block has nothing rounded before it: its inputs are the float model's.
    first = observe(Walk(floats, [batch]), floats.blocks[0], "blocks.0.", min_tokens=8).linear
    for name in {name for name in tensors if name.startswith("blocks.0.")} - kept:
        expected = clipped_scale(state[name], first[name].rows_NI, 4)
        torch.testing.assert_close(tensors[name].scale, expected, rtol=1e-6, atol=0)


def test_narrow_weights_are_rounded_once(model):
    model.bfloat16()
    floats, tensors, _ = quantize_model(model, [], Scheme("minmax"))
    exact, integers, _ = quantize_model(model.double(), [], Scheme("minmax"))
    expected = exact.state_dict()
    for name, value in floats.state_dict().items():
        assert value.dtype == torch.bfloat16, name
        # float32 lies between: seldom a half is made that the exact number was not.
        assert (value == expected[name].bfloat16()).float().mean() > 0.99, name
    for name, each in tensors.items():
        assert (each.values == integers[name].values).float().mean() > 0.99, name


def test_the_mix():
    scheme = Scheme()
    expected = {
        "blocks.1.ffn.gate_up": 4, "blocks.1.ffn.down": 4, "blocks.0.ffn.gate_up.weight": 8,
        "blocks.12.ffn.shared.down.weight": 8, "blocks.0.attention.q_down.weight": 8,
        "blocks.0.attention.q_up.weight": 8, "blocks.0.attention.kv_down.weight": 8,
        "blocks.0.attention.out.weight": 8, "blocks.0.attention.indexer.q_up.weight": 8,
        "blocks.0.attention.k_up.weight": None, "blocks.0.attention.v_up.weight": None,
        "blocks.0.attention.indexer.key.weight": None, "blocks.0.attention.indexer.head_weight.weight": None,
        "blocks.1.ffn.router.weight": None, "mtp.block.ffn.gate_up": None, "mtp.join.weight": None,
        "mtp.block.attention.out.weight": None, "head.weight": None, "embed.weight": None,
        "blocks.0.attention_norm.weight": None,
    }  # fmt: skip
    assert {name: scheme.bits(name) for name in expected} == expected


def test_rounding_to_nearest_needs_no_tokens(model):
    floats, tensors, facts = quantize_model(model, [], Scheme(method="minmax", rotation=False))
    weight = model.state_dict()["blocks.1.ffn.down"]
    scale = minmax_scale(weight, 4)
    assert torch.equal(tensors["blocks.1.ffn.down"].values, quantize_weight(weight, scale, 4))
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in floats.state_dict().items())
    assert facts["tokens"] == 0


@pytest.mark.parametrize(
    "batches,message",
    [
        ([], "calibration set has no tokens"),
        ([torch.zeros(0, 5, dtype=torch.long)], "calibration set has no tokens"),
        ([torch.tensor([[1, CONFIG.vocab_size]])], "token ids outside of 0 to"),
        ([torch.tensor([1.0, 2.0])], "must be token ids"),
    ],
    ids=["none", "empty", "unknown", "floats"],
)
def test_bad_calibration_sets(model, batches, message):
    with pytest.raises(ValueError, match=message):
        quantize_model(model, batches, Scheme(method="gptq"))


def test_all_tokens_to_the_same_experts(model):
    for router in model.routers():
        router.bias.copy_(torch.tensor([9.0, 9.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match=r"same 2 of 4 experts in blocks\.1\.ffn"):
        quantize_model(model, [tokens()], Scheme())


def test_weights_and_activations_that_are_not_finite(model):
    with torch.no_grad():
        model.blocks[1].attention.kv_norm.weight.mul_(1e30)
        model.blocks[1].attention.v_up.weight.mul_(1e30)
    with pytest.raises(ValueError, match=r"blocks\.1\.attention\.out\.weight hold NaN or infinity"):
        quantize_model(model, [tokens()], Scheme(rotation=False))
    with torch.no_grad():
        model.blocks[1].ffn.down[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"the weight blocks\.1\.ffn\.down holds NaN"):
        quantize_model(model, [], Scheme(method="minmax"))


def test_a_quantised_model_is_not_quantised_again(model):
    floats, tensors, _ = quantize_model(model, [], Scheme(method="minmax", rotation=True))
    with pytest.raises(ValueError, match="rotated already"):
        quantize_model(floats, [], Scheme(method="minmax", rotation=True))
    install(floats, tensors)
    with pytest.raises(ValueError, match="quantised already"):
        quantize_model(floats, [], Scheme(method="minmax", rotation=False))


@pytest.mark.parametrize("changes", [dict(method="best"), dict(expert_bits=1), dict(expert_bits=9)], ids=str)
def test_unknown_schemes(changes):
    with pytest.raises(ValueError, match="choose minmax, ssz|2 to 8 bits"):
        Scheme(**changes)


def test_experts_with_few_tokens_are_calibrated_on_all(model):
    block, walk = model.blocks[1], Walk(model, [tokens()])
    block.ffn.router.bias[2] = -9.0
    with torch.no_grad():
        walk.go_on(walk.through(model.blocks[0]))
        found = observe(walk, block, "blocks.1.", min_tokens=0)
        threshold = sorted(found.counts)[2]
        pooled = observe(walk, block, "blocks.1.", min_tokens=threshold)
    # Nothing chooses expert 2: it cannot be calibrated on its own tokens, whatever the threshold.
    assert sum(found.counts) == 240 and found.pooled == [2]
    assert pooled.pooled == [expert for expert, count in enumerate(found.counts) if count < threshold]
    for each in (found, pooled):
        for expert, count in enumerate(each.counts):
            expected = 120 if expert in each.pooled else count
            assert each.experts["blocks.1.ffn.gate_up"][expert].tokens == expected
            assert each.experts["blocks.1.ffn.down"][expert].tokens == expected
    facts = quantize_model(model, [tokens()], Scheme(method="minmax", min_tokens=1000))[2]
    assert facts["pooled"] == {"blocks.1.ffn": [0, 1, 2, 3]}


def test_moments_and_rows():
    x = torch.randn(50, 6)
    inputs = Inputs(6, keep=10, hessian=True)
    inputs.add(x[:30])
    inputs.add(x[30:])
    inputs.add(x[:0])
    torch.testing.assert_close(inputs.hessian_II.float(), x.T @ x)
    torch.testing.assert_close(inputs.mean_I, x.abs().mean(0))
    assert torch.equal(inputs.largest_I, x.abs().amax(0)) and inputs.tokens == 50
    assert len(inputs.rows_NI) == 10 and (inputs.rows_NI[:, None] == x).all(-1).any(-1).all()
    assert inputs.kurtosis == pytest.approx(float(kurtosis(x).mean()), rel=1e-5)


def test_kurtosis():
    assert kurtosis(torch.tensor([[1.0, -1, 1, 1], [5, 0, 0, 0], [0, 0, 0, 0]])).tolist() == [1.0, 4.0, 0.0]
    assert kurtosis(torch.randn(1, 200_000)).item() == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize("norms,inner", [(True, False), (False, True), (True, True)])
def test_injected_outliers_keep_the_function_and_rotation_removes_them(make_model, norms, inner):
    plain, loud = (make_model(CONFIG, 3, indexer=True, dtype=torch.float64) for _ in range(2))
    inject(loud, Outliers(factor=32.0, share=0.05, norms=norms, inner=inner))
    batch = tokens()
    for a, b in zip(outputs(plain, batch), outputs(loud, batch), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    before, after = measure_kurtosis(plain, [batch]), measure_kurtosis(loud, [batch])
    places = ["attention.q_down", "attention.q_up", "ffn.shared.gate_up"] * norms
    places += ["attention.out", "ffn.shared.down"] * inner
    assert all(after[place] > 1.5 * before[place] for place in places)
    facts = quantize_model(loud, [batch], Scheme(method="minmax", rotation=True, min_tokens=0))[2]
    if norms:
        rotated = facts["kurtosis"]["after"]
        assert all(rotated[place] < 1.5 * before[place] for place in places[:3])
