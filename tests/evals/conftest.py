"""Policies whose scores are known beforehand: they show that a suite measures what it says."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from environments.catalog import environments
from evals.environments import Item
from evals.policy import Chat, IndexerQuality, Reply, Scored


class OraclePolicy:
    """Answers held-out tasks with their environments' own oracles; ``change`` may spoil each answer."""

    attentions = ("dense",)
    top_k = 0

    def __init__(self, items: list[Item], change: Callable[[dict], dict] = dict, finish: str = "stop"):
        catalog = environments()
        self.change, self.finish = change, finish
        self.calls = 0
        self.temperatures, self.seeds = set(), set()
        self.answers = {
            (json.dumps(list(item.task.messages)), item.mode): catalog[item.task.environment].oracle(
                item.task, item.mode
            )
            for item in items
        }
        self.prompts = {key[0]: len(json.loads(key[0])) for key in self.answers}

    def generate(
        self, chats: list[Chat], mode: str, max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[Reply]:
        self.calls += 1
        self.temperatures.add(temperature)
        self.seeds.add(seed)
        return [self._reply(chat, mode) for chat in chats]

    def segments(self, chat: Chat, mode: str) -> list[tuple[str, bool]]:
        return [(str(m.get("content", "")), m["role"] == "assistant") for m in chat.messages]

    def _reply(self, chat: Chat, mode: str) -> Reply:
        length = next(n for text, n in self.prompts.items() if json.dumps(chat.messages[:n]) == text)
        prompt = json.dumps(chat.messages[:length])
        said = sum(message["role"] == "assistant" for message in chat.messages[length:])
        message = self.change(dict(self.answers[prompt, mode][said]))
        valid = self.finish == "stop"
        return Reply(message, 7, valid, None if valid else "cut off", self.finish)


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

    def complete(self, prompts: list[str], max_new_tokens: int, attention: str, stop: str) -> list[str]:
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
