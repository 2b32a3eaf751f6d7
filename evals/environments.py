"""Held-out tasks, played in the environments' own episodes: exact match and valid format by thinking mode."""

from dataclasses import dataclass
from typing import Any

from environments.catalog import environments, family_names
from evals.attempts import Attempt, Decoding, Item, play_all
from evals.conduct import conduct
from evals.policy import Chat, Policy, Result, Score
from evals.suite import clustered_share


@dataclass(frozen=True)
class Environments:
    """Scores: ``exact/<mode>``, ``exact/<mode>/<family>``, ``exact/all/<family>``, ``exact/unseen/<mode>``
    over families that were never trained, ``valid/<mode>``: the share of attempts whose every turn keeps to
    the chat format, ``conduct/<what>`` and ``safety/<what>``: the share of attempts that did it
    (``evals.conduct``). An attempt is exact when its environment gives the full reward; one whose environment
    failed counts in ``failed`` alone. What pools several modes counts a task once: its modes resemble one
    another."""

    items: list[Item]
    max_new_tokens: int
    max_turns: int = 8
    samples: int = 0
    name: str = "environments"

    def protocol(self) -> dict[str, Any]:
        return {
            "version": 3,
            "items": [[item.task.id, item.mode, list(item.task.messages)] for item in self.items],
            "max_new_tokens": self.max_new_tokens,
            "max_turns": self.max_turns,
            "decoding": "greedy",
        }

    def run(self, policy: Policy) -> Result:
        catalog = environments()
        attempts = play_all(self.items, catalog, policy, Decoding(self.max_new_tokens, self.max_turns))
        unseen = set(family_names(catalog, evaluation_only=True))
        records = [attempt.record() for attempt in attempts]
        return Result(self._scores(attempts, unseen), self._samples(attempts, policy), records)

    def _scores(self, attempts: list[Attempt], unseen: set[str]) -> list[Score]:
        """Per mode, then per family; families that were never trained stand apart from the trained ones."""
        groups: dict[str, list[tuple[float, str]]] = {}  # a value and the task that it belongs to
        for attempt in attempts:
            mode, task = attempt.item.mode, attempt.item.task
            values = {"failed": float(attempt.reward is None)}
            if attempt.reward is not None:
                group = f"exact/unseen/{mode}" if attempt.family in unseen else f"exact/{mode}"
                names = (group, f"exact/{mode}/{attempt.family}", f"exact/all/{attempt.family}")
                values |= dict.fromkeys(names, attempt.exact)
                values[f"valid/{mode}"] = float(attempt.fault is None)
                values |= conduct(task, attempt.messages, attempt.fault, attempt.cut_off)
            for name, value in values.items():
                groups.setdefault(name, []).append((float(value), task.id))
        ordered = sorted(groups, key=lambda name: (name.count("/"), name))
        return [clustered_share(name, *zip(*groups[name], strict=True)) for name in ordered]

    def _samples(self, attempts: list[Attempt], policy: Policy) -> list[dict[str, Any]]:
        """For each mode, tasks with tools first, then one a family."""
        chosen: list[Attempt] = []
        for mode in dict.fromkeys(attempt.item.mode for attempt in attempts):
            first: dict[str, Attempt] = {}
            for attempt in attempts:
                if attempt.item.mode == mode and attempt.turns:
                    first.setdefault(attempt.item.task.environment, attempt)
            chosen += sorted(first.values(), key=lambda attempt: -attempt.turns)[: self.samples]
        return [_sample(attempt, policy) for attempt in chosen]


def _sample(attempt: Attempt, policy: Policy) -> dict[str, Any]:
    """The whole dialogue as the model reads it, with what it has to sample told apart."""
    task = attempt.item.task
    chat = Chat(attempt.messages, list(task.tools) or None)
    return {
        "kind": "chat",
        "id": task.id,
        "family": attempt.family,
        "mode": attempt.item.mode,
        "score": attempt.reward,
        "reason": attempt.reason,
        "fault": attempt.fault,
        "sampled_tokens": attempt.tokens,
        "messages": attempt.messages,
        "segments": policy.segments(chat, attempt.item.mode),
    }
