"""Filters by hand, draws against the distribution, and drafts that change neither."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from plain_forward import plain_logits

from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.inference.sampler import Draw, choose, gumbel, keep_likely, stop_string


def kept(probabilities, **params):
    scores = torch.tensor([probabilities], dtype=torch.float64).log()
    return keep_likely(scores, [SamplingParams(**params)])[0].isfinite().nonzero().flatten().tolist()


def test_filters_by_hand():
    chances = [0.1, 0.4, 0.05, 0.3, 0.15]
    assert kept(chances, top_k=2) == [1, 3]
    assert kept(chances, top_p=0.69) == [1, 3]
    assert kept(chances, top_p=0.71) == [1, 3, 4]
    assert kept(chances, top_p=0.01) == [1]
    assert kept(chances, min_p=0.3) == [1, 3, 4]
    assert kept(chances, min_p=1.0) == [1]
    assert kept(chances, top_k=3, top_p=0.8) == [1, 3]  # of what top_k left, they hold 0.82
    assert kept([0.25] * 4, top_k=2) == [0, 1]  # equal ones: the lower ids
    assert kept(chances) == [0, 1, 2, 3, 4]


def test_rows_are_filtered_and_drawn_one_by_one():
    logits = torch.randn(5, 40)
    params = [
        SamplingParams(temperature=0), SamplingParams(temperature=0.5, top_k=3), SamplingParams(top_p=0.4),
        SamplingParams(), SamplingParams(temperature=0),
    ]  # fmt: skip
    draws = [Draw(p, 17 + n, 4 * n) for n, p in enumerate(params)]
    together = choose(logits, draws).tolist()
    alone = [int(choose(logits[n : n + 1], [draw])) for n, draw in enumerate(draws)]
    assert together == alone
    assert [together[n] for n in (0, 4)] == logits[[0, 4]].argmax(-1).tolist()
    assert together[1] in logits[1].topk(3).indices.tolist()


def chi_squared(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("vary", ["seed", "number"])
def test_draws_follow_the_distribution(vary):
    chance = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.04, 0.01], dtype=torch.float64)
    draws = [
        Draw(SamplingParams(), n if vary == "seed" else -3, n if vary == "number" else 5)
        for n in range(20_000)
    ]
    counts = np.bincount(choose(chance.log().expand(20_000, -1), draws).numpy(), minlength=6)
    assert chi_squared(counts, chance.numpy() * 20_000) < 26  # 5 degrees of freedom: once in ten thousand


def splitmix64(value: int) -> int:
    """In whole numbers, as its author has it (Steele et al. 2014, with Vigna's constants)."""
    word = 2**64
    value = (value + 0x9E3779B97F4A7C15) % word
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % word
    value = (value ^ value >> 27) * 0x94D049BB133111EB % word
    return value ^ value >> 31


def test_noise_is_a_hash_of_seed_number_and_entry():
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the published first value of seed 0
    draws = [Draw(SamplingParams(), s, n) for s in (0, 7, 2**63 - 1, 2**62 + 3) for n in (0, 1, 95, 32_767)]
    noise = gumbel(draws, 5, torch.device("cpu"))
    for row, draw in zip(noise.tolist(), draws, strict=True):
        base = splitmix64(splitmix64(draw.seed) + draw.number)
        for entry, value in enumerate(row):
            bits = splitmix64((base + entry * 0x9E3779B97F4A7C15) % 2**64)
            uniform = ((bits >> 11) + 0.5) * 2.0**-53
            assert value == pytest.approx(-math.log(-math.log(uniform)), rel=1e-13)


def test_noise_is_gumbels_and_uncorrelated():
    noise = gumbel([Draw(SamplingParams(), seed, 0) for seed in range(400)], 500, torch.device("cpu")).numpy()
    assert noise.mean() == pytest.approx(0.5772, abs=0.01) and noise.var() == pytest.approx(1.645, abs=0.03)
    for other in (np.roll(noise, 1, 0), np.roll(noise, 1, 1)):
        assert abs(np.corrcoef(noise.ravel(), other.ravel())[0, 1]) < 0.01


def test_stop_strings_across_tokens():
    assert stop_string(b"", b"ab", ("bc",)) == (None, b"b")
    assert stop_string(b"b", b"cd", ("bc",)) == ("bc", b"d")
    assert stop_string(b"", b"xabcd", ("cd", "ab"))[0] == "ab"  # complete first
    assert stop_string("é".encode()[:1], "é".encode()[1:], ("é",))[0] == "é"
    assert stop_string(b"", b"abc", ("a",)) == ("a", b"")


def test_a_stop_string_ends_a_request(tiny_model):
    class Tokenizer:
        def token_bytes(self, token):
            return b"%d," % token

    model = tiny_model(0)
    [free] = Engine(model).generate([[1, 2]], SamplingParams(12, 0.0))
    stop = f"{free.ids[4]},{free.ids[5]}"
    end = next(n for n in range(12) if stop in ",".join(map(str, free.ids[: n + 1])) + ",")
    for draft_steps in (0, 3):
        engine = Engine(model, tokenizer=Tokenizer(), draft_steps=draft_steps)
        [stopped] = engine.generate([[1, 2]], SamplingParams(12, 0.0, stop_strings=("never", stop)))
        assert stopped.ids == free.ids[: end + 1]
        assert stopped.finish == "stop" and stopped.stop == stop
        [token] = engine.generate([[1, 2]], SamplingParams(12, 0.0, stop_ids=frozenset({free.ids[3]})))
        assert token.finish == "stop" and token.stop == free.ids[3] == token.ids[-1]


def test_top_logprobs(tiny_model):
    model = tiny_model(1)
    params = SamplingParams(1, seed=3, top_logprobs=4, prompt_logprobs=True)
    [completion] = Engine(model).generate([[1, 2, 3]], params)
    logprobs = plain_logits(model, [1, 2, 3]).log_softmax(-1)
    for token, row in zip([*completion.prompt, *completion.tokens], logprobs, strict=True):
        best = row.topk(4)
        assert [i for i, _ in token.top] == best.indices.tolist()
        assert [v for _, v in token.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def trained_to_repeat(model):
    """Head and block such that token t + 1 mostly follows token t: drafts are often right, and often not."""
    with torch.no_grad():
        model.embed.weight.copy_(
            torch.nn.functional.normalize(torch.randn_like(model.embed.weight), dim=-1) * 5
        )
        model.head.weight.copy_(model.embed.weight.roll(1, 0) * 0.2)
        for block in (*model.blocks, model.mtp.block):
            block.attention.out.weight.mul_(0.1)
        model.mtp.join.weight.zero_()
        width = model.embed.weight.shape[1]
        model.mtp.join.weight[:, :width] = torch.eye(width)
    return model


def test_drafts_change_no_token_and_no_distribution(tiny_model):
    model = trained_to_repeat(tiny_model(2, hidden_size=40))
    prompt, draws = [3, 4, 5], 1500
    results, stats = [], []
    for draft_steps in (0, 1, 3):
        engine = Engine(model, draft_steps=draft_steps, max_running=100)
        greedy = engine.generate([prompt], SamplingParams(20, 0.0))[0].ids
        sampled = [c.ids for c in engine.generate([prompt] * draws, SamplingParams(3, 0.8, seed=0))]
        results.append((greedy, sampled))
        stats.append(engine.stats())
    assert results[0] == results[1] == results[2]
    assert stats[0]["accept_length"] == 0 and 1.2 < stats[1]["accept_length"] <= 2
    assert stats[1]["accept_length"] < stats[2]["accept_length"] <= 4
    # The second token given the first: the exact distribution, though most of them were drafted.
    sampled = results[2][1]
    first, _ = Counter(ids[0] for ids in sampled).most_common(1)[0]
    seconds = [ids[1] for ids in sampled if ids[0] == first]
    expected = (plain_logits(model, [*prompt, first])[-1] / 0.8).softmax(-1).numpy() * len(seconds)
    likely = expected > 5
    counts = np.bincount(seconds, minlength=len(expected))
    pooled = (
        np.append(counts[likely], counts[~likely].sum()),
        np.append(expected[likely], expected[~likely].sum()),
    )
    assert likely.sum() > 1 and len(seconds) > 200
    assert chi_squared(*pooled) < 3 * likely.sum() + 20
