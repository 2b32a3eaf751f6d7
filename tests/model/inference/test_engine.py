"""The engine against the training forward: whatever is beside a request, its tokens and their values are the
same.
"""

import random

import pytest
import torch
from plain_forward import check_completion, plain_logits

from model.config import PAGE_TOKENS, preset
from model.inference.engine import Engine
from model.inference.request import QueueFull, SamplingParams
from model.inference.weights import checksum


def prompts_for(model, count, seed="prompts", longest=30):
    rng = random.Random(seed)
    return [
        [rng.randrange(model.config.vocab_size) for _ in range(rng.randrange(1, longest))]
        for _ in range(count)
    ]


def idle(engine) -> bool:
    """Every page is free or an unused prefix."""
    stats = engine.stats()
    return (
        stats["running"] == stats["waiting"] == 0
        and stats["prefix_pages"] == stats["prefix_pages_unused"]
        and stats["pages_free"] + stats["prefix_pages"] == stats["pages"]
    )


@pytest.mark.parametrize("routes", [False, True])
def test_a_shape_tells_the_size_of_its_engines_cache(tiny_model, routes):
    engine = Engine(tiny_model(5), attention="sparse", record_experts=routes)
    config, cache = engine.model.config, engine._cache
    tensors = [*cache.kv, *cache.index_keys, *([cache.routes] if routes else [])]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert engine.stats()["pages"] == config.cache_pages() == 65_536 // PAGE_TOKENS
    assert size == (config.cache_pages() + 1) * PAGE_TOKENS * config.cache_bytes_per_token(routes=routes)


def test_a_context_that_is_longer_than_the_cache_has_room():
    config = preset("glm5")
    assert config.cache_pages() * PAGE_TOKENS >= config.max_positions + PAGE_TOKENS
    assert config.cache_pages(7, draft_steps=3) * 7 >= config.max_positions + 12 + 7


@pytest.mark.parametrize("attention", ["sparse", "dense"])
@pytest.mark.parametrize("sizes", [
    dict(page_size=4, prefill_chunk=5, max_running=3),
    dict(page_size=16, prefill_chunk=500),
    dict(page_size=3, prefill_chunk=7, draft_steps=3),
    dict(page_size=5, prefill_chunk=11, pages=24, draft_steps=1),  # too few for all: some give up theirs
])  # fmt: skip
def test_logprobs_are_the_training_forwards(tiny_model, attention, sizes):
    model = tiny_model(1)
    engine = Engine(model, attention=attention, **sizes)
    prompts = prompts_for(model, 9)
    prompts += [prompts[0] + [3, 4], prompts[0] + [3, 5]]
    params = [
        SamplingParams(max_new_tokens=14, temperature=0.9 * (n % 3 > 0), seed=n, prompt_logprobs=n % 4 == 1)
        for n in range(len(prompts))
    ]
    gaps = []
    for round in range(2):  # the second finds prefixes
        completions = engine.generate(prompts, params)
        for prompt, own, completion in zip(prompts, params, completions, strict=True):
            assert completion.finish == "length" and len(completion.ids) == 14
            check_completion({0: model}, prompt, own, completion, 1e-5, attention)
            logprobs = plain_logits(model, [*prompt, *completion.ids], attention).log_softmax(-1)
            gaps += [
                t.logprob - float(logprobs[len(prompt) - 1 + n, t.id])
                for n, t in enumerate(completion.tokens)
            ]
            assert [token.id for token in completion.prompt] == (prompt[1:] if own.prompt_logprobs else [])
            for position, token in enumerate(completion.prompt):
                assert token.logprob == pytest.approx(float(logprobs[position, token.id]), abs=1e-5)
        assert idle(engine)
        if round:
            assert any(completion.cached_tokens for completion in completions)
    # The estimator of mismatch KL that training uses, over all sampled tokens.
    gap = torch.tensor(gaps, dtype=torch.float64)
    assert float((gap.exp() - 1 - gap).mean()) < 1e-8
    assert (engine.stats()["preemptions"] > 0) == (sizes.get("pages") == 24)


@pytest.mark.parametrize("draft_steps", [0, 2])
def test_200_random_interleavings(tiny_model, draft_steps):
    """Requests, cancels and weight updates at random moments: each token is its version's own."""
    models = {version: tiny_model(2, torch.float64) for version in range(3)}
    for version, model in models.items():
        with torch.no_grad():
            model.embed.weight.add_(torch.randn(model.embed.weight.shape) * 0.3 * version)
    states = {
        version: {k: v.clone() for k, v in model.state_dict().items()} for version, model in models.items()
    }
    serving = tiny_model(2, torch.float64)
    engine = Engine(serving, page_size=3, pages=40, prefill_chunk=6, max_running=3, draft_steps=draft_steps)
    rng = random.Random(f"interleavings {draft_steps}")
    base = prompts_for(serving, 3, "base", 12)
    mixed = cancelled = 0
    for number in range(100):
        engine.load_weights(states[number % 3], number % 3)
        jobs, done, left = {}, {}, rng.randrange(2, 5)
        while left or engine.has_work:
            action = rng.random()
            if left and action < 0.4:
                prompt = rng.choice(base) + [rng.randrange(60) for _ in range(rng.randrange(1, 5))]
                params = SamplingParams(
                    max_new_tokens=rng.randrange(1, 10), temperature=rng.choice([0, 1.0]),
                    seed=rng.randrange(99), top_p=rng.choice([1.0, 0.8]), stop_ids=frozenset({7, 8}),
                )  # fmt: skip
                jobs[engine.add(prompt, params)] = (prompt, params)
                left -= 1
            elif action < 0.45 and jobs:
                engine.cancel(rng.choice(list(jobs)))
            elif action < 0.6:
                version = rng.randrange(3)
                engine.load_weights(states[version], version)
                assert engine.stats()["prefix_pages"] == 0
            else:
                for event in engine.step():
                    if event.completion is not None:
                        done[event.request] = event.completion
        assert done.keys() == jobs.keys() and idle(engine)
        for request, completion in done.items():
            check_completion(models, *jobs[request], completion, 1e-9)
            mixed += len({token.version for token in completion.tokens}) > 1
            cancelled += completion.finish == "cancelled"
    assert mixed > 10 and cancelled > 10


def test_golden_greedy_trace(tiny_model):
    model = tiny_model(3, torch.float64)
    [completion] = Engine(model, draft_steps=2).generate([[1, 2, 3, 4, 5]], SamplingParams(12, 0.0))
    assert completion.ids == GOLDEN


def test_prefixes_are_shared_within_a_version_only(tiny_model):
    model = tiny_model(4)
    engine = Engine(model, page_size=4, draft_steps=1)
    prompt, greedy = prompts_for(model, 1, longest=3)[0] + list(range(20)), SamplingParams(4, 0.0, seed=0)
    assert engine.generate([prompt], greedy)[0].cached_tokens == 0
    first = engine.generate([prompt], greedy)[0]
    assert first.cached_tokens == (len(prompt) - 1) // 4 * 4
    changed = {name: value + 0.05 * torch.randn_like(value) if value.dim() > 1 else value
               for name, value in model.state_dict().items()}  # fmt: skip
    engine.load_weights(changed, 1)
    second = engine.generate([prompt], greedy)[0]
    assert second.cached_tokens == 0 and {token.version for token in second.tokens} == {1}
    check_completion({1: model}, prompt, greedy, second, 1e-5)  # the model now holds the new weights


@pytest.mark.parametrize("draft_steps", [0, 2])
@pytest.mark.parametrize("chunk", [7, 500])
def test_equal_prompts_that_arrive_together_are_read_once(tiny_model, draft_steps, chunk):
    model = tiny_model(11)
    engine = Engine(model, page_size=4, prefill_chunk=chunk, draft_steps=draft_steps)
    prompt = list(range(30))
    prompts = [prompt, prompt, prompt[:10] + [50, 51], prompt]
    params = [SamplingParams(8, 0.9 * (n > 0), seed=n) for n in range(4)]
    completions = engine.generate(prompts, params)
    for prompt, own, completion in zip(prompts, params, completions, strict=True):
        check_completion({0: model}, prompt, own, completion, 1e-5)
    assert [c.cached_tokens for c in completions] == [0, 28, 8, 28]
    assert engine.stats()["prompt_tokens"] == 30 + 2 + 4 + 2 and idle(engine)


def test_pages_of_a_pass_that_failed_are_forgotten(tiny_model, monkeypatch):
    model = tiny_model(12)
    engine = Engine(model, page_size=4, max_running=2)
    prompt = list(range(20))
    engine.generate([prompt], SamplingParams(2))
    with monkeypatch.context() as broken:
        broken.setattr(model, "logits", lambda _: 1 / 0)
        failed = engine.generate([prompt + [1, 2, 3, 4]] * 3, SamplingParams(2))
    assert all(completion.finish == "error" for completion in failed)
    assert engine.stats()["prefix_pages"] == 0 and idle(engine)
    greedy = SamplingParams(3, 0.0, seed=0)
    check_completion({0: model}, prompt, greedy, engine.generate([prompt], greedy)[0], 1e-5)


def test_drafts_are_the_mtp_blocks_own(tiny_model):
    """The first draft at every place is what the training form of step 1 predicts, also behind shared
    prefixes.
    """
    model = tiny_model(6, torch.float64)
    engine = Engine(model, page_size=3, prefill_chunk=4, draft_steps=2)
    prompt = prompts_for(model, 1, "drafts", 3)[0] + list(range(17))
    for _ in range(2):
        engine.add(prompt, SamplingParams(9, 0.0))
        seen = {}
        [sequence] = engine._sequences.values()
        while engine.has_work:
            engine.step()
            if sequence.drafts:
                seen[len(sequence.ids)] = sequence.drafts[0]
        ids = torch.tensor([sequence.ids])
        with torch.no_grad():
            states, _ = model.mtp_states(
                ids, model(ids, attention="sparse").hidden_BTD, steps=1, attention="sparse"
            )
            predicted = model.logits(states[0])[0].argmax(-1).tolist()
        assert len(seen) > 5
        assert {n: predicted[n - 2] for n in seen} == seen
    assert sequence.completion.cached_tokens > 0


def test_full_queue_cancel_and_bad_requests(tiny_model):
    model = tiny_model(7)
    engine = Engine(model, page_size=4, pages=16, max_running=1, max_waiting=2)
    params = SamplingParams(6, 0.0)
    first = engine.add([1, 2, 3], params)
    engine.step()
    second, third = engine.add([1], params), engine.add([2], params)
    with pytest.raises(QueueFull):
        engine.add([3], params)
    engine.cancel(first)
    engine.cancel(third)
    ended = {e.request: e.completion for e in engine.step() if e.completion is not None}
    assert {first, third} == ended.keys() and all(c.finish == "cancelled" for c in ended.values())
    assert len(ended[first].ids) == 1
    while engine.has_work:
        ended |= {e.request: e.completion for e in engine.step() if e.completion is not None}
    assert ended[second].finish == "length" and idle(engine)
    for prompt, sentence in (
        ([], "holds no token"),
        ([model.config.vocab_size], "is no token"),
        ([-1], "is no token"),
        ([True, "a"], "is no token"),
        ([1] * 64, "needs .* of cache"),
    ):
        with pytest.raises(ValueError, match=sentence):
            engine.add(prompt, params)
    with pytest.raises(ValueError, match="need a tokenizer"):
        engine.add([1], SamplingParams(3, stop_strings=("a",)))
    assert not engine.has_work


def test_weights_that_do_not_fit_change_nothing(tiny_model):
    model = tiny_model(8)
    engine = Engine(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    good = {name: value + 1 for name, value in before.items()}
    bad = [
        ({**good, "more": torch.zeros(1)}, None, "have more"),
        ({k: v for k, v in good.items() if k != "norm.weight"}, None, "lack norm.weight"),
        ({**good, "norm.weight": torch.zeros(3)}, None, "has shape"),
        (good, "0" * 64, "checksum"),
    ]
    for state, expected, sentence in bad:
        with pytest.raises(ValueError, match=sentence):
            engine.load_weights(state, 9, expected)
    assert engine.version == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    engine.load_weights(good, 9, checksum(good))
    assert engine.version == 9 and torch.equal(model.norm.weight, good["norm.weight"])


def test_an_error_of_one_request_ends_that_one(tiny_model):
    model = tiny_model(9)

    class Tokenizer:
        def token_bytes(self, token):
            raise ValueError("no such token")

    engine = Engine(model, tokenizer=Tokenizer())
    good, bad = engine.generate([[1, 2], [1, 2]], [SamplingParams(4), SamplingParams(4, stop_strings=("x",))])
    assert good.finish == "length" and bad.finish == "error" and bad.error == "no such token"
    with torch.no_grad():
        model.embed.weight[5] = float("nan")
    good, bad = engine.generate([[1, 2], [5, 2]], [SamplingParams(1, 0.0), SamplingParams(4, 0.0)])
    assert good.finish == "length" and bad.finish == "error" and "not finite" in bad.error
    [after] = engine.generate([[1, 2, 3]], SamplingParams(1, 0.0))  # on pages that held what was not finite
    assert after.finish == "length" and idle(engine)


def test_memory_is_flat_over_many_requests(tiny_model):
    model = tiny_model(10)
    engine = Engine(model, page_size=4, pages=40, max_waiting=50)
    rng = random.Random(0)
    for _ in range(6):
        prompts = [[rng.randrange(60) for _ in range(rng.randrange(1, 20))] for _ in range(50)]
        engine.generate(prompts, SamplingParams(2, seed=1))
        assert idle(engine) and engine.stats()["prefix_pages"] <= 40
        assert len(engine._scheduler.prefix._unused_leaves) <= 4 * 40 + 65


GOLDEN = [16, 9, 9, 7, 16, 34, 18, 9, 9, 17, 7, 16]
