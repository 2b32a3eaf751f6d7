"""Held-out tasks sampled several times at temperature 1, as reinforcement learning samples them and as the
paper scores reasoning: what a reward moves shows here before the most probable answer changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from environments.catalog import environments, family_names
from evals.attempts import Attempt, Decoding, Item, play_all
from evals.policy import Policy, Result, Score
from evals.statistics import pass_at_k, pass_hat_k
from evals.suite import clustered_share

TEMPERATURE = 1.0
SEED = 20260217


@dataclass(frozen=True)
class SampledEnvironments:
    """Scores: ``mean/all``, ``mean/unseen`` over families that were never trained, ``mean/<family>``: the
    share of attempts with the full reward, a task counting once; ``pass@k/all`` and ``pass^k/all``: that one
    of all ``k`` samples of a task is right, and that all are; ``valid/all``.

    Its protocol fixes the draws, so that one checkpoint has one score.
    """

    items: list[Item]
    samples_per_task: int
    max_new_tokens: int
    max_turns: int = 8
    name: str = "sampled"

    def protocol(self) -> dict[str, Any]:
        return {
            "version": 1,
            "items": [[item.task.id, item.mode, list(item.task.messages)] for item in self.items],
            "max_new_tokens": self.max_new_tokens,
            "max_turns": self.max_turns,
            "decoding": {"temperature": TEMPERATURE, "samples": self.samples_per_task, "seed": SEED},
        }

    def run(self, policy: Policy) -> Result:
        catalog = environments()
        repeated = [item for item in self.items for _ in range(self.samples_per_task)]
        decoding = Decoding(self.max_new_tokens, self.max_turns, TEMPERATURE, SEED)
        attempts = play_all(repeated, catalog, policy, decoding)
        judged = [attempt for attempt in attempts if attempt.reward is not None]
        unseen = set(family_names(catalog, evaluation_only=True))
        scores = [*_means(judged, unseen), *_passes(judged, unseen, self.samples_per_task)]
        return Result(scores, [], [attempt.record() for attempt in attempts])


def _means(attempts: Sequence[Attempt], unseen: set[str]) -> list[Score]:
    groups: dict[str, list[tuple[float, str]]] = {}
    for attempt in attempts:
        group = "mean/unseen" if attempt.family in unseen else "mean/all"
        values = dict.fromkeys((group, f"mean/{attempt.family}"), attempt.exact)
        values["valid/all"] = float(attempt.fault is None)
        for name, value in values.items():
            groups.setdefault(name, []).append((value, attempt.item.task.id))
    ordered = sorted(groups, key=lambda name: (name.count("/"), name))
    return [clustered_share(name, *zip(*groups[name], strict=True)) for name in ordered]


def _passes(attempts: Sequence[Attempt], unseen: set[str], k: int) -> list[Score]:
    """Over the tasks of the trained families of which every sample was judged."""
    tasks: dict[str, list[float]] = {}
    for attempt in attempts:
        if attempt.family not in unseen:
            tasks.setdefault(attempt.item.task.id, []).append(attempt.exact)
    whole = {task: hits for task, hits in tasks.items() if len(hits) == k}
    if not whole:
        return []
    counts = [(len(hits), int(np.sum(hits))) for hits in whole.values()]
    return [
        clustered_share(f"pass@{k}/all", [pass_at_k(n, right, k) for n, right in counts], list(whole)),
        clustered_share(f"pass^{k}/all", [pass_hat_k(n, right, k) for n, right in counts], list(whole)),
    ]
