"""What all suites share: the protocol's hash, and scores from the values of items."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from evals.policy import Policy, Result, Score
from evals.statistics import bootstrap_ratio, clustered_wilson, wilson
from pipeline.artifacts import digest_of


class Suite(Protocol):
    name: str

    def protocol(self) -> dict[str, Any]:
        """All that decides a score beside the checkpoint: version, items, settings. Plain JSON values."""
        ...

    def run(self, policy: Policy) -> Result: ...


def protocol_hash(suite: Suite) -> str:
    """Two scores may be compared when their suites' hashes are equal."""
    return digest_of({"suite": suite.name, **suite.protocol()})


def ratio(name: str, numerators: list[float], denominators: list[float]) -> Score:
    """``sum / sum`` with a bootstrap interval over items."""
    low, high = bootstrap_ratio(np.array(numerators), np.array(denominators))
    value = float(np.sum(numerators) / np.sum(denominators))
    return Score(name, value, low, high, len(numerators), list(numerators), list(denominators))


def mean(name: str, values: list[float]) -> Score:
    """The mean of unbounded values with a bootstrap interval."""
    return ratio(name, values, [1.0] * len(values))


def share(name: str, values: list[float]) -> Score:
    """The mean of values in [0, 1] with a Wilson interval."""
    low, high = wilson(float(np.sum(values)), len(values))
    ones = [1.0] * len(values)
    return Score(name, float(np.mean(values)), low, high, len(values), list(values), ones, proportion=True)


def clustered_share(name: str, values: Sequence[float], clusters: Sequence[Hashable]) -> Score:
    """The mean over clusters, such as tasks, of the mean of their values in [0, 1]; an item is a cluster."""
    groups: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        groups.setdefault(cluster, []).append(value)
    means = [float(np.mean(group)) for group in groups.values()]
    low, high = clustered_wilson(np.array(means), len(values))
    return Score(
        name, float(np.mean(means)), low, high, len(means), means, [1.0] * len(means), proportion=True
    )
