"""The experts of every token: as the training forward routes it, and kept when weights change."""

import numpy as np
import pytest
import torch
from test_decode import native, requests_for, versions

from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.transformer import Transformer


def routes_of(model: Transformer, ids: list[int], attention="sparse") -> np.ndarray:
    """int64 (T, MoE layers, K) of a plain forward."""
    seen = []
    routers = model.routers()[: model.config.num_layers - model.config.first_dense_layers]
    hooks = [r.register_forward_hook(lambda _, __, out: seen.append(out[2].index_BTK[0])) for r in routers]
    with torch.no_grad():
        model(torch.tensor([ids]), attention=attention)
    for hook in hooks:
        hook.remove()
    return torch.stack(seen, 1).numpy()


@pytest.mark.parametrize("mode", ["plain", "padded", native])
@pytest.mark.parametrize(
    "sizes", [dict(page_size=4, max_running=5), dict(page_size=3, pages=40, prefill_chunk=7)]
)
def test_experts_are_those_of_the_training_forward(tiny_model, mode, sizes):
    model = tiny_model(30)
    engine = Engine(model, decode=mode, record_experts=True, **sizes)
    prompts, params = requests_for(model, 8, "routing")
    for prompt, completion in zip(prompts, engine.generate(prompts, params), strict=True):
        read = [*prompt, *completion.ids][:-1]
        assert completion.experts.shape[0] == len(read)
        assert (np.sort(completion.experts) == np.sort(routes_of(model, read))).all()
    assert engine.stats()["preemptions"] > 0 or "pages" not in sizes


@pytest.mark.gpu
def test_recorded_passes_keep_the_experts_too(tiny_model):
    """In CUDA graphs, bfloat16: the padded pass's experts (float32 would not be recorded)."""
    model = tiny_model(35, torch.bfloat16, index_dim=32, index_heads=4).to("cuda")
    prompts, params = requests_for(model, 8, "graphs")
    answers = {}
    for mode in ("padded", "graphs"):
        engine = Engine(model, decode=mode, record_experts=True, page_size=4)
        answers[mode] = engine.generate(prompts, params)
    assert engine.stats()["recorded_shapes"] > 0
    for padded, graphs in zip(*answers.values(), strict=True):
        assert padded.ids == graphs.ids and (padded.experts == graphs.experts).all()


def test_experts_of_shared_prefixes_and_drafts(tiny_model):
    model = tiny_model(31)
    engine = Engine(model, page_size=4, draft_steps=2, record_experts=True)
    prompt = list(range(1, 30))
    for _ in range(2):
        (completion,) = engine.generate([prompt], SamplingParams(9, 0.0))
        read = [*prompt, *completion.ids][:-1]
        assert (np.sort(completion.experts) == np.sort(routes_of(model, read))).all()
    assert completion.cached_tokens > 0


def test_tokens_keep_the_experts_of_the_weights_that_read_them_first(tiny_model):
    models = versions(tiny_model, 32)
    engine = Engine(tiny_model(32), page_size=4, record_experts=True)
    number = engine.add([5, 6, 7, 8, 9], SamplingParams(12, 0.0))
    for _ in range(6):
        engine.step()
    before = len(engine._sequences[number].ids) - 1
    engine.load_weights({name: tensor.clone() for name, tensor in models[1].state_dict().items()}, 1)
    completion = None
    while completion is None:
        completion = next((e.completion for e in engine.step() if e.completion), None)
    read = [5, 6, 7, 8, 9, *completion.ids][:-1]
    old, new = (np.sort(routes_of(models[version], read)) for version in range(2))
    assert (np.sort(completion.experts)[:before] == old[:before]).all()
    assert (np.sort(completion.experts)[before:] == new[before:]).all()
    assert (old != new).any(), "the weights route differently"


def test_without_recording_there_are_none(tiny_model):
    (completion,) = Engine(tiny_model(33)).generate([[1, 2]], SamplingParams(3, 0.0))
    assert completion.experts is None


def test_replayed_routes_take_the_place_of_the_routers_choice(tiny_model):
    """The same routes give the same values; others give others, with a gradient; -1 leaves it free."""
    model, ids = tiny_model(34), torch.tensor([list(range(3, 20))])
    plain = model(ids, attention="sparse").hidden_BTD.detach()
    own = torch.from_numpy(routes_of(model, ids[0].tolist())).permute(1, 0, 2).unsqueeze(1)
    replayed = model(ids, attention="sparse", route_LBTK=own.to(torch.int16))
    assert torch.equal(replayed.hidden_BTD, plain)
    free = model(ids, attention="sparse", route_LBTK=torch.full_like(own, -1))
    assert torch.equal(free.hidden_BTD, plain)
    other = (own + 1) % model.config.num_experts
    changed = model(ids, attention="sparse", route_LBTK=other)
    assert (changed.hidden_BTD - plain).abs().max() > 1e-4
    changed.hidden_BTD.square().sum().backward()
    router = model.routers()[0]
    assert router.weight.grad.abs().sum() > 0
    assert (
        changed.load_LE[0].tolist()
        == torch.bincount(other[0].flatten(), minlength=model.config.num_experts).tolist()
    )
    # Under activation checkpointing the same.
    model.recompute = True
    again = model(ids, attention="sparse", route_LBTK=other)
    assert torch.equal(again.hidden_BTD, changed.hidden_BTD)
