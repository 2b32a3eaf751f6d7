"""What each stage gained or lost, and a quantised model beside its parent: paired differences by item."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from evals.policy import Result, Score
from evals.statistics import bootstrap_difference, mcnemar, paired_newcombe

Results = dict[tuple[str, str], Result]
Protocols = dict[tuple[str, str], str]


def changes(results: Results, protocols: Protocols, pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """A row for every score that the two checkpoints of a pair share, in order of the pairs.

    Scores of different protocols are never compared, nor those of a suite whose environments failed on other
    items: where the items differ there is no row. ``p`` is McNemar's, exact, where an item is right or wrong.
    """
    rows = []
    for before, after in pairs:
        for suite in dict.fromkeys(suite for name, suite in results if name == after):
            if protocols.get((before, suite)) != protocols[after, suite]:
                continue
            if results[before, suite].unjudged == results[after, suite].unjudged:
                rows += [
                    {"before": before, "after": after, "suite": suite, **difference}
                    for difference in _compare(results[before, suite], results[after, suite])
                ]
    return rows


def perplexity_change(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Relative change of the perplexity by token, 0.01 for one percent, from a change of bits per token.

    A perplexity is two to the power of the bits, so the bounds of their difference carry over.
    """
    return [
        {**row, "name": "perplexity", **{key: 2 ** row[key] - 1 for key in ("change", "low", "high")}}
        for row in rows
        if row["name"] == "per_token"
    ]


def _compare(first: Result, second: Result) -> list[dict[str, Any]]:
    known = {score.name: score for score in first.scores}
    shared = [score for score in second.scores if score.name in known and known[score.name].n == score.n]
    return [{"name": score.name, **_difference(known[score.name], score)} for score in shared]


def _difference(a: Score, b: Score) -> dict[str, Any]:
    found = {"change": b.value - a.value, "n": a.n}
    pair_a = np.array(a.numerators), np.array(a.denominators)
    pair_b = np.array(b.numerators), np.array(b.denominators)
    if a.proportion and a.n:
        low, high = paired_newcombe(pair_a[0], pair_b[0], (a.low, a.high), (b.low, b.high))
        if np.isin(np.concatenate([pair_a[0], pair_b[0]]), (0.0, 1.0)).all():
            found["p"] = mcnemar(pair_a[0], pair_b[0])
    else:
        low, high = bootstrap_difference(pair_a, pair_b)
    return {**found, "low": low, "high": high}
