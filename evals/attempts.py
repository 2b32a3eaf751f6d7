"""Held-out tasks played by a policy in the environments' own episodes, turn by turn and in batches."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.interface import Environment, Episode, Message, Mode, Task
from environments.pathologies import language, repetition
from evals.conduct import asked_and_answered
from evals.policy import Chat, Policy


@dataclass(frozen=True)
class Item:
    task: Task
    mode: Mode


@dataclass(frozen=True)
class Decoding:
    """``temperature`` 0 is greedy; else ``seed`` fixes the draws."""

    max_new_tokens: int  # of a turn
    max_turns: int
    temperature: float = 0.0
    seed: int = 0


@dataclass
class Attempt:
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

    @property
    def family(self) -> str:
        return f"{self.item.task.environment}/{self.item.task.family}"

    @property
    def exact(self) -> float:
        return float(self.reward == 1.0)

    def record(self) -> dict[str, Any]:
        """What verifiers and rules say of it, without a word of its text."""
        asked, text = asked_and_answered(self.item.task, self.messages)
        return {
            "task": self.item.task.id,
            "mode": self.item.mode,
            "reward": self.reward,
            "valid": self.fault is None,
            "language": language(asked, text),
            "repetition": repetition(text),
        }


def play_all(
    items: Sequence[Item], catalog: dict[str, Environment], policy: Policy, decoding: Decoding
) -> list[Attempt]:
    """An attempt for each item: a batch of generation for each mode, then the environments' replies."""
    return asyncio.run(_play_all(items, catalog, policy, decoding))


async def _play_all(
    items: Sequence[Item], catalog: dict[str, Environment], policy: Policy, decoding: Decoding
) -> list[Attempt]:
    attempts = [Attempt(item, catalog[item.task.environment].episode()) for item in items]
    try:
        prompts = await asyncio.gather(*(a.episode.reset(a.item.task) for a in attempts))
        for attempt, prompt in zip(attempts, prompts, strict=True):
            attempt.messages = list(prompt)
        for turn in range(decoding.max_turns):
            active = [attempt for attempt in attempts if not attempt.done]
            for mode in dict.fromkeys(attempt.item.mode for attempt in active):
                await _turn([a for a in active if a.item.mode == mode], policy, mode, decoding, turn)
        await asyncio.gather(*(_judge(attempt) for attempt in attempts))
    finally:
        await asyncio.gather(*(attempt.episode.close() for attempt in attempts))
    return attempts


async def _turn(attempts: list[Attempt], policy: Policy, mode: Mode, decoding: Decoding, turn: int) -> None:
    chats = [Chat(attempt.messages, list(attempt.item.task.tools) or None) for attempt in attempts]
    seed = decoding.seed * decoding.max_turns + turn
    replies = policy.generate(chats, mode, decoding.max_new_tokens, decoding.temperature, seed)
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


async def _judge(attempt: Attempt) -> None:
    verdict = await attempt.episode.verify()
    attempt.reward, attempt.reason = verdict.reward, verdict.reason
