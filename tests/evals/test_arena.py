"""The arena recovers strengths that are known, and does not care who is called what or stands where."""

import itertools
import math

import numpy as np
import pytest

from evals.arena import SCALE, bradley_terry, hold, judge


def answer(task="t", mode="off", reward=0.0, **rules) -> dict:
    return {
        "task": task,
        "mode": mode,
        "reward": reward,
        "valid": True,
        "language": 1.0,
        "repetition": 1.0,
    } | rules


def contestants(strengths: dict[str, float], tasks: int, seed: int = 4) -> dict[str, list[dict]]:
    """Rewards such that the odds between two are those of their strengths: exponential races (Luce)."""
    rng = np.random.default_rng(seed)
    return {
        name: [answer(str(task), reward=-rng.exponential(math.exp(-strength))) for task in range(tasks)]
        for name, strength in strengths.items()
    }  # fmt: skip


def test_constructed_strengths_are_recovered_within_their_intervals():
    strengths = {"a": -0.8, "b": 0.0, "c": 0.2, "d": 0.6}
    found = hold(contestants(strengths, 2000), seed=1)
    assert [r.name for r in sorted(found.ratings, key=lambda r: r.value)] == list(strengths)
    for rating in found.ratings:
        wanted = 1000 + SCALE * strengths[rating.name]
        assert rating.low < wanted < rating.high and rating.high - rating.low < 40
        assert abs(rating.value - wanted) < 20
    assert found.battles == 6 * 2000 and found.ties == 0
    share = found.wins["d"]["a"] / (found.wins["d"]["a"] + found.wins["a"]["d"])
    assert share == pytest.approx(1 / (1 + math.exp(-1.4)), abs=0.03)


def test_newton_finds_the_strengths_that_explain_the_wins_exactly():
    beta = np.array([0.9, -0.4, -0.5])
    odds = 1 / (1 + np.exp(beta[None, :] - beta[:, None]))
    found = bradley_terry((1e9 * odds * (1 - np.eye(3)))[None])[0]
    assert found == pytest.approx(beta, abs=1e-6)


def test_names_and_sides_decide_nothing():
    answers = contestants({"a": 0.0, "b": 0.5, "c": 1.0}, 60)
    known = {r.name: r for r in hold(answers, seed=3).ratings}
    for order in itertools.permutations(answers):
        for rating in hold({name: answers[name] for name in order}, seed=9).ratings:
            assert rating.value == pytest.approx(known[rating.name].value)
            assert rating.low == pytest.approx(known[rating.name].low, abs=1e-6)


def test_the_verifier_decides_then_rules_then_nothing():
    right, wrong = answer(reward=1.0, valid=False), answer()
    assert judge(right, wrong) == 1.0 and judge(wrong, right) == 0.0
    assert judge(answer(valid=False), answer()) == 0.0
    assert judge(answer(language=0.9), answer(repetition=0.1)) == 0.0  # rules have an order
    assert judge(answer(), answer()) == 0.5


def test_ties_are_half_a_win_each_and_a_clean_sweep_stays_finite():
    tied = hold({"a": [answer(str(n)) for n in range(9)], "b": [answer(str(n)) for n in range(9)]}, seed=0)
    assert tied.ties == tied.battles == 9 and tied.wins["a"]["b"] == 4.5
    assert [r.value for r in tied.ratings] == pytest.approx([1000, 1000])
    sweep = hold({"a": [answer(str(n), reward=1.0) for n in range(9)],
                  "b": [answer(str(n)) for n in range(9)]}, seed=0)  # fmt: skip
    first, second = sweep.ratings
    assert 1200 < first.value < 1500 and first.value + second.value == pytest.approx(2000)


def test_modes_of_a_task_are_drawn_together():
    modes = ("interleaved", "preserved", "off")
    once = contestants({"a": 0.0, "b": 0.3}, 80)
    thrice = {n: [{**a, "mode": mode} for a in rows for mode in modes] for n, rows in once.items()}
    single, triple = (hold(answers, seed=2).ratings[0] for answers in (once, thrice))
    assert triple.high - triple.low == pytest.approx(single.high - single.low, rel=0.05)


def test_what_was_not_judged_or_not_asked_of_both_is_left_out():
    a = [answer("1", reward=1.0), answer("2", reward=None), answer("3", reward=1.0)]
    b = [answer("1"), answer("2")]
    found = hold({"a": a, "b": b}, seed=0)
    assert found.battles == found.tasks == 1 and math.isinf(found.ratings[0].high)
    with pytest.raises(ValueError, match="a and b answered no prompt in common"):
        hold({"a": a[2:], "b": b}, seed=0)
    with pytest.raises(ValueError, match="two contestants or more, not 1"):
        hold({"a": a}, seed=0)
