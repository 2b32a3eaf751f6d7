"""What each stage gained or lost: differences on the same items, with intervals that use the pairing."""

from typing import Any

import numpy as np

from evals.policy import Result, Score
from evals.statistics import bootstrap_difference, newcombe


def changes(
    results: dict[tuple[str, str], Result], protocols: dict[tuple[str, str], str], names: list[str]
) -> list[dict[str, Any]]:
    """A row for every score that a checkpoint shares with the one before it in ``names``.

    Scores of different protocols are never compared: where the items differ there is no row.
    """
    rows = []
    for before, after in zip(names, names[1:], strict=False):
        for suite in dict.fromkeys(suite for name, suite in results if name == after):
            if protocols.get((before, suite)) == protocols[after, suite]:
                rows += [
                    {"before": before, "after": after, "suite": suite, **difference}
                    for difference in _compare(results[before, suite], results[after, suite])
                ]
    return rows


def _compare(first: Result, second: Result) -> list[dict[str, Any]]:
    known = {score.name: score for score in first.scores}
    shared = [score for score in second.scores if score.name in known and known[score.name].n == score.n]
    return [{"name": score.name, **_difference(known[score.name], score)} for score in shared]


def _difference(a: Score, b: Score) -> dict[str, float]:
    if a.proportion:
        low, high = newcombe((a.value, a.low, a.high), (b.value, b.low, b.high))
        return {"change": b.value - a.value, "low": low, "high": high, "n": a.n}
    pair_a = np.array(a.numerators), np.array(a.denominators)
    pair_b = np.array(b.numerators), np.array(b.denominators)
    low, high = bootstrap_difference(pair_a, pair_b)
    return {"change": b.value - a.value, "low": low, "high": high, "n": a.n}
