"""Folding and rotation change nothing in float64, and leaving anything out changes a lot."""

import copy
from dataclasses import replace

import pytest
import torch
from shapes import small_config

from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.quantization import rotation
from model.quantization.folding import fold, folds
from model.transformer import Transformer

CONFIG = small_config(
    5, num_layers=2, first_dense_layers=1, hidden_size=24, q_latent=16, kv_latent=12, num_experts=4,
    experts_per_token=2, num_shared_experts=1, index_top_k=5, mtp_steps=2,
)  # fmt: skip


@pytest.fixture
def model(make_model):
    return make_model(CONFIG, 3, indexer=True, dtype=torch.float64)


@torch.no_grad()
def observe(model) -> dict[str, torch.Tensor]:
    """Everything a rotation must leave as it is, for tokens that are longer than the selection."""
    chosen: dict[str, list] = {"experts": [], "keys": []}
    hooks = [
        r.register_forward_hook(lambda _, __, out: chosen["experts"].append(out[0])) for r in model.routers()
    ]
    attentions = model.attentions()
    for attention in attentions:
        attention.select = lambda *a, f=attention.select: chosen["keys"].append(f(*a)) or chosen["keys"][-1]
    tokens = torch.randint(CONFIG.vocab_size, (2, 14), generator=torch.Generator().manual_seed(0))
    hidden = model(tokens, attention="sparse").hidden_BTD
    states, _ = model.mtp_states(tokens, hidden, steps=2, attention="sparse")
    for hook in hooks:
        hook.remove()
    for attention in attentions:
        del attention.select
    return {
        "logits": model.logits(hidden),
        # A chain's last places lack the token they would read.
        "mtp": torch.stack([model.draft_head(state) for state in states])[:, :, :-2],
        "experts": torch.stack(chosen["experts"]),
        "keys": torch.stack([index.sort(-1).values for index in chosen["keys"]]),
    }


def change(before: dict, after: dict) -> dict[str, float]:
    return {
        name: float((before[name] - after[name]).abs().max() if before[name].is_floating_point()
                    else (before[name] != after[name]).sum())
        for name in before
    }  # fmt: skip


def assert_same(before, after):
    assert max(change(before, after).values()) < 1e-9, change(before, after)


@pytest.mark.parametrize("seed", range(3))
def test_rotation_changes_nothing(model, seed):
    before = observe(model)
    weights = copy.deepcopy(model.state_dict())
    rotation.rotate_model(model, seed=seed)
    assert_same(before, observe(model))
    state = model.state_dict()
    for name, value in weights.items():
        if name.endswith("norm.weight") and "key_norm" not in name:
            assert state[name].eq(1).all()
        elif value.dim() > 1:
            assert not torch.allclose(state[name], value, atol=1e-3), name


def test_folding_alone_changes_nothing(model):
    before = observe(model)
    rotation.prepare(model)
    fold(folds(model))
    assert_same(before, observe(model))


def test_without_indexer_and_without_mtp(make_model):
    model = make_model(small_config(7, mtp_steps=0), 1, dtype=torch.float64)
    tokens = torch.randint(60, (1, 9))
    before = model.logits(model(tokens).hidden_BTD)
    rotation.rotate_model(model)
    torch.testing.assert_close(model.logits(model(tokens).hidden_BTD), before, atol=1e-9, rtol=0)


def test_float32_stays_within_float32_noise(make_model):
    model = make_model(CONFIG, 3, indexer=True)
    tokens = torch.randint(60, (1, 9))
    before = model.logits(model(tokens).hidden_BTD)
    rotation.rotate_model(model)
    after = model.logits(model(tokens).hidden_BTD)
    assert (after - before).abs().max() < 1e-4 * before.abs().max()


def test_twice_is_refused(model):
    rotation.rotate_model(model)
    with pytest.raises(ValueError, match="rotated already"):
        rotation.rotate_model(model)


def consumers(make_table) -> list[tuple[str, str]]:
    model = Transformer(CONFIG, indexer=True)
    rotation.prepare(model)
    return make_table(model)


FOLDED = consumers(lambda m: [(norm, name) for norm, each in folds(m).items() for name in each.consumers])
TURNED = consumers(
    lambda m: [
        (turn, side, name)
        for turn, each in rotation.turns(m, 0).items()
        for side in ("writers", "readers")
        for name in getattr(each, side)
    ]
)


def test_the_lists_hold_every_matrix():
    """Every matrix takes part in a rotation, and every one that reads a norm in folding."""
    model = Transformer(CONFIG, indexer=True)
    rotation.prepare(model)
    named = {name.partition("[")[0] for _, _, name in TURNED}
    assert named == {name for name, value in model.named_parameters() if value.dim() > 1}
    writers = {"embed.weight", "mtp.correction.weight"} | {n for n in named if "out." in n or ".down" in n}
    assert named - writers == {name.partition("[")[0] for _, name in FOLDED}


@pytest.mark.parametrize("norm,name", FOLDED)
def test_a_consumer_left_out_of_folding_is_seen(model, norm, name):
    before = observe(model)
    rotation.prepare(model)
    found = folds(model)
    del found[norm].consumers[name]
    fold(found)
    assert max(change(before, observe(model)).values()) > 1e-3


@pytest.mark.parametrize("place,side,name", TURNED)
def test_a_weight_left_out_of_a_rotation_is_seen(model, place, side, name):
    before = observe(model)
    rotation.prepare(model)
    fold(folds(model))
    found = rotation.turns(model, 0)
    kept = {key: value for key, value in getattr(found[place], side).items() if key != name}
    found[place] = replace(found[place], **{side: kept})
    with torch.no_grad():
        for each in found.values():
            rotation.turn(each)
    assert max(change(before, observe(model)).values()) > 1e-3


def test_the_correction_is_needed(model):
    before = observe(model)
    rotation.rotate_model(model)
    model.mtp.correction = None
    after = change(before, observe(model))
    assert after["logits"] < 1e-9 and after["mtp"] > 1e-3


def test_drafts_are_the_same(model):
    """The engine's chain: the first step reads the trunk's states, later ones the block's own."""

    def drafts():
        engine = Engine(model, page_size=4, draft_steps=2)
        for prompt in ([3, 1, 4, 1, 5], [9, 2, 6]):
            engine.add(prompt, SamplingParams(12, 0.0))
        seen = []
        while engine.has_work:
            engine.step()
            seen += [(list(s.ids), list(s.drafts)) for s in engine._sequences.values() if s.drafts]
        return seen

    before = drafts()
    assert len(before) > 10 and len({tuple(d) for _, d in before}) > 3
    rotation.rotate_model(model, seed=2)
    assert drafts() == before
    model.mtp.correction = None
    assert drafts() != before
