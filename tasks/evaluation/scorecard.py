"""All results of an evaluation, and the rows and samples that are written of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evals.policy import Result, Score
from evals.suite import Suite, protocol_hash
from pipeline.artifacts import digest_of
from tasks.evaluation.cache import Cache


@dataclass
class Scorecard:
    """Results by the name of the checkpoint or baseline and by suite."""

    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    protocols: dict[tuple[str, str], str] = field(default_factory=dict)
    seconds: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, suite: Suite, cache: Cache, digest: str, compute: Callable[[], Result]) -> None:
        """Take the result of ``suite`` on what ``digest`` identifies from the cache, else compute it."""
        started = time.time()
        protocol = protocol_hash(suite)
        key = digest_of([protocol, getattr(suite, "samples", 0)])
        self.results[name, suite.name], cached = cache.get(digest, key, compute)
        self.protocols[name, suite.name] = protocol
        spent = {"seconds": round(time.time() - started, 2), "cached": cached}
        self.seconds.append({"checkpoint": name, "suite": suite.name, **spent})

    def extend(self, other: "Scorecard") -> None:
        """Put the results of another scorecard behind these."""
        self.results |= other.results
        self.protocols |= other.protocols
        self.seconds += other.seconds

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "checkpoint": name, "suite": suite, "name": score.name, "value": score.value,
                "low": score.low, "high": score.high, "n": score.n, "protocol": self.protocols[name, suite],
            }
            for (name, suite), result in self.results.items()
            for score in result.scores
        ]  # fmt: skip

    def items(self) -> dict[str, Any]:
        """By checkpoint, suite and score what each item gave, for paired comparisons with other evaluations:
        ``values``, or ``numerators`` over ``denominators`` where these are not all 1. Beside a suite's scores
        ``unjudged``: task and mode of what its environments failed on, which is in no score.
        """
        found: dict[str, Any] = {}
        for (name, suite), result in self.results.items():
            scores = {score.name: _items(score) for score in result.scores}
            found.setdefault(name, {})[suite] = {**scores, "unjudged": result.unjudged}
        return found

    def samples(self) -> list[dict[str, Any]]:
        return [
            {"checkpoint": name, "suite": suite, **sample}
            for (name, suite), result in self.results.items()
            for sample in result.samples
        ]


def _items(score: Score) -> dict[str, Any]:
    if all(weight == 1 for weight in score.denominators):
        return {"proportion": score.proportion, "values": score.numerators}
    return {
        "proportion": score.proportion, "numerators": score.numerators, "denominators": score.denominators,
    }  # fmt: skip


def finite(value: Any) -> Any:
    """Infinite bounds (an interval of one item) become null: JSON has no infinity."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
