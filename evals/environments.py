"""Held-out tasks, played in the environments' own episodes: exact match and valid format by thinking mode."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from environments.catalog import environments, family_names
from environments.interface import Environment, Episode, Message, Mode, Task
from evals.conduct import conduct
from evals.policy import Chat, Policy, Result, Score
from evals.suite import share


@dataclass(frozen=True)
class Item:
    task: Task
    mode: Mode


@dataclass
class _Attempt:
    item: Item
    episode: Episode
    messages: list[Message] = field(default_factory=list)
    done: bool = False
    turns: int = 0
    tokens: int = 0
    fault: str | None = None  # the first format fault
    cut_off: bool = False
    reward: float | None = None  # None: the environment failed
    reason: str = ""


@dataclass(frozen=True)
class Environments:
    """Scores: ``exact/<mode>``, ``exact/<mode>/<family>``, ``exact/all/<family>``, ``exact/unseen/<mode>``
    over families that were never trained, ``valid/<mode>``: the share of attempts whose every turn keeps to
    the chat format, ``conduct/<what>`` and ``safety/<what>``: the share of attempts that did it
    (``evals.conduct``). An attempt is exact when its environment gives the full reward; one whose environment
    failed counts in ``failed`` alone."""

    items: list[Item]
    max_new_tokens: int
    max_turns: int = 8
    samples: int = 0
    name: str = "environments"

    def protocol(self) -> dict[str, Any]:
        return {
            "version": 2,
            "items": [[item.task.id, item.mode, list(item.task.messages)] for item in self.items],
            "max_new_tokens": self.max_new_tokens,
            "max_turns": self.max_turns,
            "decoding": "greedy",
        }

    def run(self, policy: Policy) -> Result:
        catalog = environments()
        attempts = asyncio.run(_play_all(self.items, catalog, policy, self.max_new_tokens, self.max_turns))
        unseen = set(family_names(catalog, evaluation_only=True))
        return Result(self._scores(attempts, unseen), self._samples(attempts, policy))

    def _scores(self, attempts: list[_Attempt], unseen: set[str]) -> list[Score]:
        """Per mode, then per family; families that were never trained stand apart from the trained ones."""
        exact: dict[str, list[float]] = {}
        valid: dict[str, list[float]] = {}
        behaved: dict[str, list[float]] = {}
        for attempt in attempts:
            if attempt.reward is None:
                continue
            mode, family = attempt.item.mode, _family(attempt)
            hit = float(attempt.reward == 1.0)
            group = f"exact/unseen/{mode}" if family in unseen else f"exact/{mode}"
            for name in (group, f"exact/{mode}/{family}", f"exact/all/{family}"):
                exact.setdefault(name, []).append(hit)
            valid.setdefault(f"valid/{mode}", []).append(float(attempt.fault is None))
            done = conduct(attempt.item.task, attempt.messages, attempt.fault, attempt.cut_off)
            for name, value in done.items():
                behaved.setdefault(name, []).append(float(value))
        failed = [float(attempt.reward is None) for attempt in attempts]
        groups = {**valid, **exact, **behaved, "failed": failed}
        ordered = sorted(groups, key=lambda name: (name.count("/"), name))
        return [share(name, groups[name]) for name in ordered]

    def _samples(self, attempts: list[_Attempt], policy: Policy) -> list[dict[str, Any]]:
        """For each mode, tasks with tools first, then one a family."""
        chosen: list[_Attempt] = []
        for mode in dict.fromkeys(attempt.item.mode for attempt in attempts):
            first: dict[str, _Attempt] = {}
            for attempt in attempts:
                if attempt.item.mode == mode and attempt.turns:
                    first.setdefault(attempt.item.task.environment, attempt)
            chosen += sorted(first.values(), key=lambda attempt: -attempt.turns)[: self.samples]
        return [_sample(attempt, policy) for attempt in chosen]


async def _play_all(
    items: list[Item], catalog: dict[str, Environment], policy: Policy, max_new_tokens: int, max_turns: int
) -> list[_Attempt]:
    """All episodes turn by turn: a batch of generation for each mode, then the environments' replies."""
    attempts = [_Attempt(item, catalog[item.task.environment].episode()) for item in items]
    try:
        prompts = await asyncio.gather(*(a.episode.reset(a.item.task) for a in attempts))
        for attempt, prompt in zip(attempts, prompts, strict=True):
            attempt.messages = list(prompt)
        for _ in range(max_turns):
            active = [attempt for attempt in attempts if not attempt.done]
            for mode in dict.fromkeys(attempt.item.mode for attempt in active):
                await _turn([a for a in active if a.item.mode == mode], policy, mode, max_new_tokens)
        await asyncio.gather(*(_judge(attempt) for attempt in attempts))
    finally:
        await asyncio.gather(*(attempt.episode.close() for attempt in attempts))
    return attempts


async def _turn(attempts: list[_Attempt], policy: Policy, mode: Mode, max_new_tokens: int) -> None:
    chats = [Chat(attempt.messages, list(attempt.item.task.tools) or None) for attempt in attempts]
    replies = policy.generate(chats, mode, max_new_tokens)
    for attempt, reply in zip(attempts, replies, strict=True):
        attempt.messages = [*attempt.messages, reply.message]
        attempt.turns += 1
        attempt.tokens += reply.tokens
        # A turn that was cut off is not put before the environment.
        attempt.done = attempt.cut_off = reply.finish == "length"
        if not reply.valid:
            attempt.fault = attempt.fault or reply.reason
    finished = [attempt for attempt in attempts if not attempt.done]
    steps = await asyncio.gather(*(a.episode.step(a.messages[-1]) for a in finished))
    for attempt, step in zip(finished, steps, strict=True):
        attempt.messages = [*attempt.messages, *step.messages]
        attempt.done = step.done


async def _judge(attempt: _Attempt) -> None:
    verdict = await attempt.episode.verify()
    attempt.reward, attempt.reason = verdict.reward, verdict.reason


def _family(attempt: _Attempt) -> str:
    return f"{attempt.item.task.environment}/{attempt.item.task.family}"


def _sample(attempt: _Attempt, policy: Policy) -> dict[str, Any]:
    """The whole dialogue as the model reads it, with what it has to sample told apart."""
    task = attempt.item.task
    chat = Chat(attempt.messages, list(task.tools) or None)
    return {
        "kind": "chat",
        "id": task.id,
        "family": _family(attempt),
        "mode": attempt.item.mode,
        "score": attempt.reward,
        "reason": attempt.reason,
        "fault": attempt.fault,
        "sampled_tokens": attempt.tokens,
        "messages": attempt.messages,
        "segments": policy.segments(chat, attempt.item.mode),
    }
