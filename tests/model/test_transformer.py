"""The whole network: counts, initial values, determinism, dtypes."""

import pytest
import torch
from shapes import small_config
from torch.utils.flop_counter import FlopCounterMode

from model.config import PRESETS, preset
from model.loss import next_targets, training_losses
from model.transformer import Transformer


@pytest.mark.parametrize("config", [preset(name) for name in PRESETS] + [small_config(s) for s in range(4)])
def test_counts_of_the_config_are_those_of_the_network(config):
    with torch.device("meta"):
        model = Transformer(config, indexer=True)

    def count(*parts):
        return sum(p.numel() for n, p in model.named_parameters() if any(part in f".{n}" for part in parts))

    counts = config.parameter_counts()
    mtp = count(".mtp.")
    assert counts["mtp"] == mtp
    assert counts["total"] == sum(p.numel() for p in model.parameters()) - mtp
    assert counts["indexer"] == sum(
        p.numel() for n, p in model.named_parameters() if ".indexer." in n and not n.startswith("mtp")
    )
    assert counts["embedding"] == count(".embed.") and counts["head"] == count(".head.")
    idle = 1 - config.experts_per_token / config.num_experts
    assert counts["active"] == counts["total"] - counts["embedding"] - round(counts["experts"] * idle)


@pytest.mark.parametrize("mtp", [0.0, 1.0])
def test_flops_against_torchs_own_counter(mtp):
    """Matrix products of a step over single tokens, where the square of attention is its triangle."""
    config = small_config(0, first_dense_layers=1, mtp_steps=2)
    model = Transformer(config)
    tokens = torch.randint(config.vocab_size, (50, 1))
    with FlopCounterMode(display=False) as counter:
        losses = training_losses(model, tokens, tokens.clone(), mtp=mtp > 0)
        (losses.lm + losses.mtp).backward()
    counted = counter.get_total_flops() / 50
    # A document of one token has no target for the MTP steps, so that their head is left out.
    head = 3 * mtp * config.mtp_steps * 2 * config.hidden_size * config.vocab_size
    # The formula also counts norms' weights as matrices, which adds a little.
    assert config.training_flops_per_token(1, mtp=mtp) - head == pytest.approx(counted, rel=0.02)


def test_flops_of_attention_by_hand():
    config = small_config(1, index_top_k=4)
    per_key = 2 * config.num_heads * (config.qk_dim + config.v_dim) * config.num_layers

    def difference(length, attention):
        return config.forward_flops_per_token(length, attention) - config.forward_flops_per_token(
            1, attention
        )

    assert difference(6, "dense") == pytest.approx(per_key * ((1 + 2 + 3 + 4 + 5 + 6) / 6 - 1))
    assert difference(6, "window") == pytest.approx(per_key * ((1 + 2 + 3 + 4 + 4 + 4) / 6 - 1))
    scores = 2 * config.index_heads * config.index_dim * config.num_layers
    expected = per_key * ((1 + 2 + 3 + 4 + 4 + 4) / 6 - 1) + scores * (21 / 6 - 1)
    assert difference(6, "sparse") == pytest.approx(expected)


def test_initial_values_and_seed():
    model = Transformer(preset("tiny"), seed=3, indexer=True)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(
                parameter, torch.full_like(parameter, 0.0 if name.endswith("bias") else 1.0)
            ), name
        else:
            parameter = parameter.detach()
            assert parameter.std() == pytest.approx(0.02, rel=0.1) and abs(parameter.mean()) < 0.002, name
    same, other = (
        Transformer(preset("tiny"), seed=3, indexer=True),
        Transformer(preset("tiny"), seed=4, indexer=True),
    )
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert not torch.equal(model.head.weight, other.head.weight)
    heads = [a.indexer.key.weight for a in model.attentions()]
    assert not any(torch.equal(a, b) for i, a in enumerate(heads) for b in heads[:i])


def test_repeated_passes_give_the_same_bits(make_model):
    config = small_config(1)
    tokens = torch.randint(config.vocab_size, (3, 30))
    starts = torch.tensor([[0] * 11 + [11] * 19] * 3, dtype=torch.int32)
    results = []
    for _ in range(2):
        model = make_model(config, indexer=True)
        losses = training_losses(
            model, tokens, next_targets(tokens, starts), start_BT=starts, attention="sparse",
            indexer_loss=True, mtp=True,
        )  # fmt: skip
        (losses.lm + losses.mtp + losses.balance + losses.indexer_kl).backward()
        results.append([losses.lm, losses.indexer_kl, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_bfloat16_autocast_stays_near(make_model):
    config = small_config(2)
    model = make_model(config, indexer=True)
    tokens = torch.randint(config.vocab_size, (2, 20))
    target = next_targets(tokens)
    exact = training_losses(model, tokens, target, attention="dense", indexer_loss=True, mtp=True)
    with torch.autocast("cpu", torch.bfloat16):
        rough = training_losses(model, tokens, target, attention="dense", indexer_loss=True, mtp=True)
    assert rough.token_BT.dtype == torch.float32
    for name in ("lm", "mtp", "indexer_kl"):
        assert getattr(rough, name).item() == pytest.approx(getattr(exact, name).item(), rel=0.03), name


def test_dense_model_has_no_indexer_and_gets_or_loses_one(make_model):
    model = make_model(small_config(3))
    assert not any("indexer" in name for name, _ in model.named_parameters()) and not model.has_indexer
    model.add_indexer(seed=1)
    assert model.has_indexer and all(a.indexer is not None for a in model.attentions())
    model.drop_indexer()
    assert not any("indexer" in name for name in model.state_dict())
