"""Decode passes of fixed shapes, in CUDA graphs and in native code: tokens and values of the plain way."""

import gc
import random
import weakref

import pytest
import torch
from native_decoding import needs_compiler
from plain_forward import check_completion
from shapes import small_config

from model.inference.decode import Decoder
from model.inference.engine import Engine
from model.inference.native.build import compiler, library
from model.inference.request import SamplingParams
from model.inference.weights import for_inference, narrowed, state_for_inference

native = pytest.param("native", marks=needs_compiler)
SIZES = [dict(page_size=4, max_running=5), dict(page_size=16), dict(page_size=3, pages=40, max_running=7)]


def requests_for(model, count: int, seed: str, new=(1, 40)):
    rng = random.Random(seed)
    prompts = [[rng.randrange(model.config.vocab_size) for _ in range(rng.randrange(1, 30))]
               for _ in range(count)]  # fmt: skip
    prompts.append(prompts[0] + [3, 4])
    params = [
        SamplingParams(
            max_new_tokens=rng.randrange(*new), temperature=0.9 * (n % 3 == 0), top_p=0.9 + 0.1 * (n % 6 > 0),
            seed=n, top_logprobs=2 * (n % 4 == 1), prompt_logprobs=n % 5 == 2,
        )
        for n in range(len(prompts))
    ]  # fmt: skip
    return prompts, params


def versions(tiny_model, seed: int, *how, **changes):
    """A model, and one of the same shape with other weights."""
    models = {version: tiny_model(seed, *how, **changes) for version in range(2)}
    with torch.no_grad():
        models[1].embed.weight.add_(0.3 * torch.randn(models[1].embed.weight.shape))
    return models


@pytest.mark.parametrize("attention", ["sparse", "dense"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", ["padded", native])
def test_passes_give_the_training_forwards_values(tiny_model, mode, attention, sizes, monkeypatch):
    model = tiny_model(20)
    engine = Engine(model, attention=attention, decode=mode, **sizes)
    passes = []
    read = Decoder.read
    monkeypatch.setattr(Decoder, "read", lambda self, r: passes.append(len(r)) or read(self, r))
    prompts, params = requests_for(model, 12, f"padded {attention}")
    for prompt, own, completion in zip(prompts, params, engine.generate(prompts, params), strict=True):
        assert len(completion.ids) == own.max_new_tokens
        check_completion({0: model}, prompt, own, completion, 1e-5, attention)
        for token in completion.tokens:
            assert len(token.top) == own.top_logprobs and (not token.top or token.logprob <= token.top[0][1])
    assert len(passes) > 10 and len(set(passes)) > 3 and max(passes) <= sizes.get("max_running", 256)
    assert (engine.stats()["preemptions"] > 0) == ("pages" in sizes)
    assert engine.stats()["recorded_shapes"] == 0


@pytest.mark.parametrize("mode", ["plain", "padded"])
def test_prompts_wait_for_one_another_while_others_decode(tiny_model, mode):
    """Every fourth pass reads prompts; it changes no token."""
    engine, params = Engine(tiny_model(20), decode=mode), SamplingParams(12, 0.9, seed=3)
    first = engine.add([5, 6, 7], params)
    engine.step()  # nobody decodes yet
    events = {first: 1}
    later = []
    for number in range(8):
        later.append(engine.add([8, 9, 10 + number], params))
        for event in engine.step():
            events[event.request] = events.get(event.request, 0) + len(event.tokens)
    assert events[first] == 9
    read = [3, 3, 3, 3, 7, 7, 7, 7] if mode == "padded" else range(8)  # in which pass each prompt was
    assert [events.get(request, 0) for request in later] == [8 - number for number in read]
    assert engine.stats()["decode_passes"] == (6 if mode == "padded" else 0)
    done = {}
    while engine.has_work:
        done |= {e.request: e.completion.ids for e in engine.step() if e.completion is not None}
    alone = Engine(tiny_model(20), decode=mode).generate([[8, 9, 10 + n] for n in range(8)], [params] * 8)
    assert [done[request] for request in later] == [completion.ids for completion in alone]


def test_prompts_that_fill_the_budget_are_read_in_passes_one_after_another(tiny_model):
    engine = Engine(tiny_model(20), decode="padded", prefill_chunk=10)
    first = engine.add([5, 6, 7], SamplingParams(20, 0.9, seed=3))
    engine.step()
    second = engine.add(list(range(1, 36)), SamplingParams(3, 0.9, seed=4))
    passes = [[event.request for event in engine.step()] for _ in range(9)]
    assert passes == [[first]] * 6 + [[first, second]] * 3  # 3 without, then 10 + 10 + 10 + 5 tokens


def test_pages_of_nobody_stay_empty_and_no_row_is_written_but_a_requests(tiny_model):
    """Rows that pad a pass write only what the first request writes."""
    model = tiny_model(21)
    engine = Engine(model, page_size=4, pages=64, decode="padded")
    for n in range(5):
        engine.add([1 + n, 2, 3], SamplingParams(9, 0.0))
    while engine.has_work:
        engine.step()
    used = {tuple(pool.abs().sum(1).nonzero().flatten().tolist()) for pool in engine._cache.kv}
    assert all(row >= 4 for rows in used for row in rows)
    # 5 requests with 3 + 8 tokens that were read, one of them sharing nothing with another.
    assert {len(rows) for rows in used} == {5 * 11}


@pytest.mark.parametrize("mode", ["padded", native])
def test_passes_read_new_weights(tiny_model, mode):
    dtype, bound = (torch.float32, 1e-5) if mode == "native" else (torch.float64, 1e-9)
    models = versions(tiny_model, 22, dtype)
    engine = Engine(tiny_model(22, dtype), page_size=3, decode=mode)
    jobs, done = {}, {}
    for n in range(3):
        params = SamplingParams(12, 0.8 * (n > 0), seed=n)
        jobs[engine.add([5, 6, 7 + n], params)] = ([5, 6, 7 + n], params)
    for _ in range(6):
        engine.step()
    shapes = dict(engine._decoder._shapes)
    engine.load_weights({k: v.clone() for k, v in models[1].state_dict().items()}, 1)
    while engine.has_work:
        done |= {e.request: e.completion for e in engine.step() if e.completion is not None}
    assert shapes and shapes.items() <= engine._decoder._shapes.items(), "a push keeps what was recorded"
    for request, completion in done.items():
        assert [token.version for token in completion.tokens] == [0] * 6 + [1] * 6
        check_completion(models, *jobs[request], completion, bound)


def test_an_engine_in_bfloat16_rounds_the_float32_weights_of_a_trainer(tiny_model):
    models = versions(tiny_model, 23)
    for n, router in enumerate(models[1].routers()):
        router.bias += 1e-5 * torch.arange(len(router.bias)) + 3.0 * n  # bfloat16 would lose the steps
    pushed = {name: tensor.clone() for name, tensor in models[1].state_dict().items()}
    params = [SamplingParams(9, 0.8 * (n > 0), seed=n) for n in range(3)]
    prompts = [[5, 6, 7 + n] for n in range(3)]
    engine = Engine(narrowed(models[0]), decode="padded")
    engine.generate(prompts, params)
    engine.load_weights(pushed, 1)
    sent = state_for_inference(models[1], "cuda")
    assert sent.keys() == pushed.keys()
    for name, tensor in engine.model.state_dict().items():
        rounded = pushed[name] if name.endswith("router.bias") else pushed[name].bfloat16()
        assert tensor.dtype == rounded.dtype == sent[name].dtype, name
        assert torch.equal(tensor, rounded) and torch.equal(sent[name], rounded), name
    assert all(torch.equal(pushed[n], t) for n, t in state_for_inference(models[1], "cpu").items())
    engine.load_weights(state_for_inference(models[0], "cuda"), 1)
    engine.load_weights(sent, 1)
    expected = Engine(narrowed(models[1]), decode="padded", version=1).generate(prompts, params)
    assert [c.tokens for c in engine.generate(prompts, params)] == [c.tokens for c in expected]


@pytest.mark.parametrize("seed", range(4))
@needs_compiler
def test_native_passes_of_any_shape_and_number_of_threads(make_model, seed):
    """Heads, latents and experts of all sizes: also those that fill no register, and no experts at all."""
    layers = dict(num_layers=3, first_dense_layers=3) if seed == 3 else {}
    model = make_model(small_config(seed, max_positions=128, **layers), seed, indexer=True)
    prompts, params = requests_for(model, 10, f"native {seed}")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 + seed % 3)
        completions = Engine(model, page_size=5, decode="native").generate(prompts, params)
    finally:
        torch.set_num_threads(threads)
    for prompt, own, completion in zip(prompts, params, completions, strict=True):
        check_completion({0: model}, prompt, own, completion, 1e-5)


def test_native_code_is_compiled_once_and_only_where_it_can_run(tiny_model, monkeypatch, tmp_path):
    if compiler():
        with pytest.raises(ValueError, match="float32 models on a CPU"):
            Engine(tiny_model(27, torch.float64), decode="native")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    build = library.__wrapped__  # not what is loaded already
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler"):
        build()
    fake = tmp_path / "c++"
    able = "case $* in *--version*|*-fsyntax-only*) exit 0;; esac"
    fake.write_text(f"#!/bin/sh\n{able}\necho no such instruction >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(ValueError, match="cannot compile decode.cpp: no such instruction"):
        build()
    assert not list((tmp_path / "glm5-pipeline").iterdir())  # nothing half made is left
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake))
    with pytest.raises(ValueError, match="native code cannot be kept in"):
        build()


def test_drafts_and_random_controls_run_as_before(tiny_model):
    model = tiny_model(24)
    greedy = SamplingParams(8, 0.0)
    expected = Engine(model).generate([[1, 2, 3]], greedy)[0].ids
    assert Engine(model, decode="padded", draft_steps=2).generate([[1, 2, 3]], greedy)[0].ids == expected
    Engine(model, decode="padded", attention="random").generate([[1, 2, 3]], greedy)


@pytest.mark.parametrize("mode", ["padded", native])
def test_an_error_in_a_pass_ends_the_requests_it_belongs_to(tiny_model, mode):
    model = tiny_model(25)
    engine = Engine(model, decode=mode)
    good, bad = (engine.add([n, 2], SamplingParams(4, 0.0)) for n in (1, 5))
    engine.step()
    sequence = engine._sequences[bad]
    sequence.ids[-1] = 9
    with torch.no_grad():
        model.embed.weight[9] = float("nan")
    ended = {}
    while engine.has_work:
        ended |= {e.request: e.completion for e in engine.step() if e.completion is not None}
    assert ended[bad].finish == "error" and "not finite" in ended[bad].error
    assert ended[good].finish == "length" and len(ended[good].ids) == 4


def test_unknown_modes_and_graphs_without_cuda_are_refused(tiny_model):
    with pytest.raises(ValueError, match="graphs need CUDA"):
        Engine(tiny_model(26), decode="graphs")
    with pytest.raises(ValueError, match="use one of plain, padded, graphs, native"):
        Engine(tiny_model(26), decode="quick")


@pytest.mark.parametrize("mode", ["padded", native])
def test_an_engine_that_is_gone_keeps_no_memory(tiny_model, mode):
    """Its cache, and on CUDA its graphs, go at once: freed by the collector while another engine records,
    they would spoil that recording.
    """
    model = tiny_model(29)
    engine = Engine(model, decode=mode)
    engine.generate([[5, 6, 7]], SamplingParams(3, 0.0, seed=0))
    decoder = weakref.ref(engine._decoder)
    gc.collect()
    gc.disable()
    try:
        del engine
        assert decoder() is None
    finally:
        gc.enable()


def test_the_server_says_before_it_starts_that_it_cannot_decode_so(tmp_path, capsys):
    pytest.importorskip("uvicorn")  # a bare GPU host has the engine's needs, not the server's
    from model.inference.server.__main__ import main

    (tmp_path / "config.json").write_text("{}")
    assert main([f"any={tmp_path}", "--decode", "graphs"]) == 1
    assert capsys.readouterr().err == "error: decode cannot be 'graphs' on cpu: graphs need CUDA\n"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["sparse", "dense"])
@pytest.mark.gpu
def test_graphs_give_the_tokens_of_padded_passes(tiny_model, attention, dtype):
    model = tiny_model(27, dtype, index_dim=32, index_heads=4).to("cuda")
    prompts, params = requests_for(model, 12, f"graphs {attention}")
    engine = Engine(model, attention=attention, page_size=4, max_running=9)
    recorded = engine.generate(prompts, params)
    assert engine.stats()["recorded_shapes"] > 3
    again = Engine(model, attention=attention, page_size=4, max_running=9, decode="padded")
    expected = again.generate(prompts, params)
    assert [c.tokens for c in recorded] == [c.tokens for c in expected]  # log-probabilities are the same bits
    if dtype == torch.float32:
        for prompt, own, completion in zip(prompts, params, recorded, strict=True):
            check_completion({0: model}, prompt, own, completion, 1e-4, attention)


@pytest.mark.gpu
def test_graphs_read_new_weights(tiny_model):
    models = {
        n: model.to("cuda") for n, model in versions(tiny_model, 28, index_dim=32, index_heads=4).items()
    }
    engine = Engine(tiny_model(28, index_dim=32, index_heads=4).to("cuda"), page_size=3)
    params = SamplingParams(12, 0.0, seed=0)
    request = engine.add([5, 6, 7], params)
    for _ in range(6):
        engine.step()
    recorded = engine.stats()["recorded_shapes"]
    engine.load_weights(models[1].state_dict(), 1)
    while engine.has_work:
        [event] = engine.step()
    assert engine.stats()["recorded_shapes"] == recorded > 0, "a push keeps them"
    assert [token.version for token in event.completion.tokens] == [0] * 6 + [1] * 6 and request == 0
    check_completion(models, [5, 6, 7], params, event.completion, 1e-4)


@pytest.mark.gpu
def test_float32_weights_become_bfloat16_on_cuda_and_their_passes_are_recorded(tiny_model):
    """As the server does it: experts in float32 wait for the device where they are many (engine.md)."""
    model = for_inference(tiny_model(34, index_dim=32, index_heads=4).to("cuda"))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {router.bias.dtype for router in model.routers()} == {torch.float32}
    engine = Engine(model, record_experts=True)
    engine.generate([[5, 6 + n % 8, 7 + n % 60] for n in range(200)], SamplingParams(9, 1.0, seed=0))
    assert engine.stats()["recorded_shapes"] > 0
