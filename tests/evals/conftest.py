"""Policies whose scores are known beforehand: they show that a suite measures what it says."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from evals.attempts import Item
from evals.policy import Chat, IndexerQuality, Reply, Scored
from evals.scripted import Answers, Scripted


class OraclePolicy(Scripted):
    """Answers held-out tasks with their environments' own oracles; ``change`` may spoil each answer."""

    def __init__(self, items: list[Item], change: Callable[[dict], dict] = dict, finish: str = "stop"):
        answers = Answers()
        answers.add_tasks(items)
        super().__init__("oracle", answers)
        self.change, self.finish = change, finish
        self.calls = 0
        self.temperatures, self.seeds = set(), set()

    def generate(
        self, chats: list[Chat], mode: str, max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[Reply]:
        self.calls += 1
        self.temperatures.add(temperature)
        self.seeds.add(seed)
        valid = self.finish == "stop"
        reason = None if valid else "cut off"
        messages = [self.change(self.answer(chat.messages, mode)) for chat in chats]
        return [Reply(message, 7, valid, reason, self.finish) for message in messages]


class BytePolicy:
    """Gives each byte ``bits`` bits, more of them where attention is worse; completes from a table."""

    attentions = ("sparse", "dense", "window", "random")
    top_k = 4

    def __init__(self, bits: dict[str, float], completions: dict[str, dict[str, str]] | None = None):
        self.bits, self.completions = bits, completions or {}

    def logprobs(self, texts: list[str], max_tokens: int, attention: str) -> list[Scored]:
        scored = []
        for text in texts:
            pieces = list(text[:max_tokens])
            sizes = np.array([len(piece.encode()) for piece in pieces])
            scored.append(Scored(sizes * self.bits[attention] * math.log(2), sizes, pieces))
        return scored

    def complete(
        self, prompts: list[str], max_new_tokens: int, attention: str, stop: str | None
    ) -> list[str]:
        return [self.completions[attention][prompt] for prompt in prompts]

    def indexer_quality(self, texts: list[str], max_tokens: int) -> list[IndexerQuality]:
        nan = float("nan")
        known = IndexerQuality([0.1, 0.3], [0.45, 0.9], [0.5, 1.0], [0.4, 0.6])
        return [
            known if len(text) > self.top_k else IndexerQuality([0.2, 0.2], *[[nan, nan]] * 3)
            for text in texts
        ]


@pytest.fixture
def oracle_policy() -> type[OraclePolicy]:
    return OraclePolicy


@pytest.fixture
def byte_policy() -> type[BytePolicy]:
    return BytePolicy
