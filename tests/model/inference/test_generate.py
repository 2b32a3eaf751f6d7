"""The batched sampler against plain full forwards of one row."""

import random

import numpy as np
import pytest
import torch

from model.config import preset
from model.inference.engine import Engine
from model.inference.generate import generate, score
from model.transformer import Transformer

VOCABULARY = 61
TOP_K = 6  # below the lengths here, so that sparse and window attention really select
MODES = ["dense", "sparse", "window"]


@pytest.fixture(scope="module")
def model() -> Transformer:
    # A large initialisation, for distributions that are far from flat.
    config = preset(
        "tiny", vocab_size=VOCABULARY, num_layers=3, mtp_steps=0, init_std=0.08, index_top_k=TOP_K
    )
    return Transformer(config, seed=3, indexer=True)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random("prompts")
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 24))] for _ in range(14)]


@torch.no_grad()
def full_logprobs(model, row, attention) -> torch.Tensor:
    """(len(row), V) of one row alone, without cache or padding."""
    hidden = model(torch.tensor([row]), attention=attention).hidden_BTD
    return model.logits(hidden)[0].log_softmax(-1)


@pytest.mark.parametrize("attention", MODES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logprobs_are_those_of_a_full_forward(model, prompts, attention, temperature):
    options = dict(max_new_tokens=12, stop_ids={5, 9}, temperature=temperature, attention=attention)
    samples = generate(model, prompts, **options)
    for prompt, sample in zip(prompts, samples, strict=True):
        logprobs = full_logprobs(model, [*prompt, *sample.ids], attention)[len(prompt) - 1 : -1]
        chosen = logprobs[range(len(sample.ids)), sample.ids]
        assert torch.allclose(torch.tensor(sample.logprobs), chosen, atol=1e-5, rtol=0)
        if temperature == 0:
            assert sample.ids == logprobs.argmax(-1).tolist()
    stopped = [sample.stopped for sample in samples]
    assert any(stopped) or temperature == 0
    for sample in samples:
        assert sample.stopped == (sample.ids[-1] in {5, 9})
        assert not {5, 9} & set(sample.ids[:-1])
        assert sample.stopped or len(sample.ids) == 12


@pytest.mark.parametrize("attention", MODES)
def test_a_row_does_not_depend_on_its_batch(model, prompts, attention):
    options = dict(
        max_new_tokens=20, stop_ids=set(range(0, VOCABULARY, 12)), temperature=1.0, attention=attention
    )
    together = generate(model, prompts, **options)
    for batch_tokens in (1, 100, 250):  # alone, and in batches of other shapes
        others = generate(model, prompts, **options, batch_tokens=batch_tokens)
        for one, other in zip(together, others, strict=True):
            assert one.ids == other.ids and one.stopped == other.stopped
            assert np.allclose(one.logprobs, other.logprobs, atol=1e-5, rtol=0)
    assert len({len(sample.ids) for sample in together}) > 3  # rows left the batch at several steps


def test_draws_follow_the_distribution_and_the_seed(model, prompts):
    prompt, draws, temperature = min(prompts, key=len), 6000, 0.7
    options = dict(max_new_tokens=1, stop_ids=(), temperature=temperature)
    samples = generate(model, [prompt] * draws, **options, seed=1)
    assert samples == generate(model, [prompt] * draws, **options, seed=1)
    assert samples != generate(model, [prompt] * draws, **options, seed=2)
    counts = np.bincount([sample.ids[0] for sample in samples], minlength=VOCABULARY)
    expected = (full_logprobs(model, prompt, "dense")[-1] / temperature).softmax(-1).numpy() * draws
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 110  # 60 degrees of freedom: exceeded once in ten thousand
    assert expected.max() > 2 * draws / VOCABULARY  # a flat draw would not pass
    flat = draws / VOCABULARY
    assert ((counts - flat) ** 2 / flat).sum() > 500


@pytest.mark.parametrize("attention", MODES)
@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
def test_score_is_a_full_forward_of_each_row(model, prompts, attention, batch_tokens):
    for row, logprobs in zip(
        prompts, score(model, prompts, attention=attention, batch_tokens=batch_tokens), strict=True
    ):
        expected = full_logprobs(model, row, attention)[range(len(row) - 1), row[1:]]
        assert logprobs.dtype == np.float32 and logprobs.shape == (len(row) - 1,)
        assert np.allclose(logprobs, expected.numpy(), atol=1e-5, rtol=0)


def test_score_agrees_with_the_sampler(model, prompts):
    samples = generate(model, prompts, max_new_tokens=9, stop_ids=(), temperature=1.0, attention="sparse")
    rows = [[*prompt, *sample.ids] for prompt, sample in zip(prompts, samples, strict=True)]
    for sample, logprobs in zip(samples, score(model, rows, attention="sparse"), strict=True):
        assert np.allclose(sample.logprobs, logprobs[-9:], atol=1e-5, rtol=0)


def test_other_attention_gives_other_numbers(model, prompts):
    dense, sparse, window = (score(model, prompts, attention=mode) for mode in MODES)
    longest = max(range(len(prompts)), key=lambda n: len(prompts[n]))
    assert np.abs(dense[longest] - sparse[longest]).max() > 1e-3
    assert np.abs(sparse[longest] - window[longest]).max() > 1e-3
    wide = score(model, prompts, attention="sparse", top_k=64)
    assert np.allclose(wide[longest], dense[longest], atol=1e-5, rtol=0)


def test_nothing_and_bad_input(model):
    assert generate(model, [], max_new_tokens=4, stop_ids=()) == []
    assert score(model, []) == []
    assert score(model, [[3]])[0].shape == (0,)
    with pytest.raises(ValueError, match="row 1 holds no token"):
        generate(model, [[1], []], max_new_tokens=4, stop_ids=())
    with pytest.raises(ValueError, match="row 0 holds no token"):
        score(model, [[]])
    with pytest.raises(ValueError, match="max_new_tokens of 1 or more"):
        generate(model, [[1]], max_new_tokens=0, stop_ids=())
    with pytest.raises(ValueError, match="temperature of 0 or more"):
        generate(model, [[1]], max_new_tokens=1, stop_ids=(), temperature=-1.0)


def test_an_engine_of_the_caller_keeps_what_it_has_read_and_gives_the_same(model, prompts):
    options = dict(max_new_tokens=8, stop_ids={5}, temperature=1.0, seed=2)
    alone = generate(model, prompts, attention="sparse", **options)
    engine = Engine(model, pages=100, page_size=4, attention="sparse")
    before = engine.stats()["prompt_tokens"]
    for _ in range(2):
        again = generate(model, prompts, engine=engine, **options)
        assert [sample.ids for sample in again] == [sample.ids for sample in alone]
    read = engine.stats()["prompt_tokens"] - before
    assert sum(map(len, prompts)) < read < 2 * sum(map(len, prompts))
