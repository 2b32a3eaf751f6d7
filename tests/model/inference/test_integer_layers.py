"""Layers that compute with integers, and the engine over a model of them."""

import copy
import random

import pytest
import torch
from native_decoding import needs_compiler
from plain_forward import check_completion
from shapes import small_config

from model.hub import save_folder
from model.inference.engine import Engine
from model.inference.generate import generate, score
from model.inference.request import SamplingParams
from model.quantization.layers import QuantizedExperts, QuantizedLinear, install, is_quantized
from model.quantization.rounding import QuantizedTensor, minmax_scale, quantize_weight
from model.quantization.scheme import Scheme

TWICE = dict(num_layers=2, first_dense_layers=1, index_top_k=7, max_positions=128)


def round_to_nearest(model, scheme: Scheme) -> dict[str, QuantizedTensor]:
    tensors = {}
    for name, weight in model.state_dict().items():
        bits = scheme.bits(name)
        if bits is not None:
            scale = minmax_scale(weight, bits)
            tensors[name] = QuantizedTensor(quantize_weight(weight, scale, bits), scale, bits)
    return tensors


@pytest.fixture
def pair(make_model):
    """A model and its W4A8 copy. Float64, so that the batch's rounding of sums lies far below int8's."""
    model = make_model(small_config(3, **TWICE), 3, indexer=True, dtype=torch.float64)
    quantized = copy.deepcopy(model)
    install(quantized, round_to_nearest(model, Scheme(method="minmax")))
    return model, quantized


def prompts_for(model, count: int) -> list[list[int]]:
    draw = random.Random("integer layers")
    vocabulary = model.config.vocab_size
    return [[draw.randrange(vocabulary) for _ in range(draw.randrange(1, 25))] for _ in range(count)]


def test_everything_of_the_scheme_is_integers(pair):
    model, quantized = pair
    kinds = {name: type(module) for name, module in quantized.named_modules()}
    assert kinds["blocks.1.ffn.quantized"] is QuantizedExperts
    linear = {name for name, kind in kinds.items() if kind is QuantizedLinear}
    assert {"blocks.0.attention.q_down", "blocks.0.ffn.down", "blocks.1.ffn.shared.gate_up"} <= linear
    assert not any("mtp" in name or name.endswith(("k_up", "v_up", "head", "router")) for name in linear)
    experts = quantized.blocks[1].ffn.quantized
    assert experts.gate_up.dtype == torch.uint8
    assert experts.gate_up.nbytes == model.blocks[1].ffn.gate_up.numel() // 2


@torch.no_grad()
def test_outputs_are_those_of_the_dequantised_weights_and_rounded_tokens(pair):
    model, quantized = pair
    tensors = round_to_nearest(model, Scheme(method="minmax"))
    meant = copy.deepcopy(model)
    meant.load_state_dict({name: t.dequantize(torch.float64) for name, t in tensors.items()}, strict=False)
    x = torch.randn(5, model.config.hidden_size, dtype=torch.float64)
    for part in ("attention.q_down", "attention.kv_down"):
        value, expected = (m.blocks[1].get_submodule(part)(x) for m in (quantized, meant))
        assert float((value - expected).norm() / expected.norm()) < 0.02  # of int8 tokens
        assert not torch.equal(value, expected)
    (value, _), (expected, _) = (m.blocks[1].ffn(x.unsqueeze(0)) for m in (quantized, meant))
    assert float((value - expected).norm() / expected.norm()) < 0.05


def test_moving_the_model_keeps_the_scales(pair):
    _, quantized = pair
    before = {n: b.clone() for n, b in quantized.named_buffers() if n.endswith("scale")}
    quantized.to(torch.bfloat16)
    after = dict(quantized.named_buffers())
    assert before and all(torch.equal(after[name], scale) for name, scale in before.items())
    tokens = torch.randint(0, quantized.config.vocab_size, (1, 9))
    assert quantized(tokens, attention="sparse").hidden_BTD.dtype == torch.bfloat16


@pytest.mark.parametrize("sizes", [
    dict(page_size=4, prefill_chunk=5, max_running=3),
    dict(page_size=3, prefill_chunk=7, draft_steps=2),
    dict(page_size=8, decode="padded"),
])  # fmt: skip
def test_engine_serves_it(pair, sizes):
    """In a batch, alone, behind shared prefixes and with drafts: the training forward's tokens."""
    _, model = pair
    prompts = prompts_for(model, 3)
    prompts.append(prompts[0] + [3, 4])
    params = [SamplingParams(max_new_tokens=6, temperature=0.8 * (n % 2), seed=n) for n in range(4)]
    engine = Engine(model, **sizes)
    first = engine.generate(prompts, params)
    again = engine.generate(prompts, params)  # finds prefixes
    assert any(completion.cached_tokens for completion in again)
    for n, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
        alone = Engine(model, **sizes).generate([prompt], [own])[0]
        assert first[n].ids == again[n].ids == alone.ids
        check_completion({0: model}, prompt, own, first[n], 1e-5)


@needs_compiler
@pytest.mark.parametrize("bits", [4, 8])
def test_native_decode_computes_the_same_integers(make_model, bits):
    """Where a sum of floats lies at the edge of two integers, its last bit decides, and a few values differ
    by what one integer is worth; most are as near as those of float weights.
    """
    model = make_model(small_config(3, **TWICE), 3, indexer=True)
    install(model, round_to_nearest(model, Scheme(method="minmax", expert_bits=bits)))
    prompts = prompts_for(model, 12)
    params = SamplingParams(max_new_tokens=8, temperature=0)
    values = []
    for decode in ("plain", "native"):
        first = [c.tokens for c in Engine(model, decode=decode).generate(prompts, params)]
        values.append(torch.tensor([[token.logprob for token in tokens[:2]] for tokens in first]))
    gap = (values[0] - values[1]).abs()
    assert float(gap.median()) < 1e-5 and float((gap < 1e-4).float().mean()) > 0.8


@pytest.mark.gpu
def test_graphs_give_the_tokens_of_padded_passes(make_model):
    config = small_config(3, **TWICE, index_dim=32, index_heads=4)  # what the indexer's kernel takes
    model = make_model(config, 3, indexer=True, dtype=torch.bfloat16).to("cuda")
    install(model, round_to_nearest(model, Scheme(method="minmax")))
    prompts = prompts_for(model, 5)
    params = SamplingParams(max_new_tokens=9, temperature=0)
    engines = [Engine(model, decode=decode) for decode in ("padded", "graphs")]
    padded, graphs = (engine.generate(prompts, params) for engine in engines)
    assert all(c.finish == "length" for c in padded), padded[0].error
    assert [c.ids for c in padded] == [c.ids for c in graphs]
    assert engines[1].stats()["recorded_shapes"] > 0


def test_generate_and_score(pair):
    _, model = pair
    prompts = prompts_for(model, 3)
    samples = generate(model, prompts, max_new_tokens=6, stop_ids=[], attention="sparse")
    rows = [prompt + sample.ids for prompt, sample in zip(prompts, samples, strict=True)]
    for sample, logprobs in zip(samples, score(model, rows, attention="sparse"), strict=True):
        assert sample.logprobs == pytest.approx(logprobs[-6:].tolist(), abs=1e-5)


def test_weights_of_another_version(pair, make_model, tmp_path):
    """Requests go on under new integers of the same scheme, given as tensors or as a quantised folder; a
    folder of float weights does not fit.
    """
    _, model = pair
    other = make_model(model.config, 8, indexer=True)
    tensors = round_to_nearest(other, Scheme(method="minmax"))
    for name, quantized in (("float", None), ("integers", tensors)):
        (tmp_path / name).mkdir()
        save_folder(other, tmp_path / name, quantized)
    install(other, tensors)
    params, prompt = SamplingParams(max_new_tokens=5, temperature=0), prompts_for(model, 1)[0]
    expected = Engine(other).generate([prompt], params)[0].ids
    for source in (other.state_dict(), tmp_path / "integers"):
        engine = Engine(copy.deepcopy(model).float())
        engine.load_weights(source, 1)
        assert engine.generate([prompt], params)[0].ids == expected
    with pytest.raises(ValueError, match="other than the model"):
        engine.load_weights(tmp_path / "float", 2)


def test_what_does_not_fit_is_refused(make_model):
    model = make_model(small_config(3, **TWICE), 3)
    tensors = round_to_nearest(model, Scheme(method="minmax"))
    one = tensors["blocks.1.ffn.down"]
    short = QuantizedTensor(one.values[:, :-1].contiguous(), one.scale[:, :-1].contiguous(), 4)
    embed = QuantizedTensor(
        torch.zeros(model.embed.weight.shape, dtype=torch.int8), torch.ones(len(model.embed.weight), 1), 8
    )
    cases = {
        "no float weight blocks.9": {"blocks.9.ffn.down": one},
        "has shape": {**tensors, "blocks.1.ffn.down": short},
        "only gate_up": {"blocks.1.ffn.gate_up": tensors["blocks.1.ffn.gate_up"]},
        "no layer that integers": {"embed.weight": embed},
    }
    for match, wrong in cases.items():
        with pytest.raises(ValueError, match=match):
            install(model, wrong)
        assert not is_quantized(model)
    install(model, tensors)
    with pytest.raises(ValueError, match="no float weight"):
        install(model, tensors)


def test_odd_rows_are_not_packed():
    values = torch.randint(-7, 8, (4, 7), dtype=torch.int8)
    layer = QuantizedLinear(QuantizedTensor(values, torch.ones(4, 1), 4))
    assert layer.values.dtype == torch.int8 and layer(torch.randn(2, 3, 7)).shape == (2, 3, 4)
