"""What a suite may ask of a model, all it knows of it: a checkpoint here, a server elsewhere."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from environments.interface import Message, Mode

Attention = Literal["dense", "sparse", "window", "random"]


@dataclass(frozen=True)
class Chat:
    messages: list[Message]
    tools: list[dict] | None = None


@dataclass(frozen=True)
class Reply:
    """One sampled assistant turn. ``valid`` says whether it keeps to the chat format, ``reason`` why not."""

    message: Message
    tokens: int
    valid: bool
    reason: str | None
    finish: str  # "stop", "tool_calls" or "length"


@dataclass(frozen=True)
class Scored:
    """One text under the model: of each token in order its nats, its size in bytes and its text."""

    nats: np.ndarray
    sizes: np.ndarray
    pieces: list[str]


@dataclass(frozen=True)
class IndexerQuality:
    """How well the lightning indexer finds what dense attention looks at, over one text; a value a layer.

    ``kl`` is the mean over queries of KL(attention || indexer) in nats. The others are mean shares of the
    head-averaged attention mass, over the queries that see more keys than the budget: ``held`` by the
    indexer's top-k, ``best`` by the best possible k keys, ``window`` by the last k keys.
    """

    kl: list[float]
    held: list[float]
    best: list[float]
    window: list[float]


class Policy(Protocol):
    attentions: tuple[Attention, ...]  # that this model can run; the first is its own
    top_k: int  # budget of keys of every attention that is not dense

    def generate(
        self, chats: list[Chat], mode: Mode, max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[Reply]:
        """The next assistant turn of each chat: greedily, or sampled, with ``seed`` and a chat's place in the
        list fixing its draws.
        """
        ...

    def complete(
        self,
        prompts: list[str],
        max_new_tokens: int,
        attention: Attention,
        stop: str | None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        """Text that continues each prompt as a document, up to the token that holds ``stop``."""
        ...

    def logprobs(self, texts: list[str], max_tokens: int, attention: Attention) -> list[Scored]:
        """Likelihood of the first ``max_tokens`` tokens of each text as the beginning of a document."""
        ...

    def chat_nats(self, chats: list[Chat], mode: Mode) -> list[np.ndarray]:
        """Of each chat the nats of every token that the model itself has to sample, in order."""
        ...

    def indexer_quality(self, texts: list[str], max_tokens: int) -> list[IndexerQuality]:
        """Only where ``attentions`` holds "sparse"."""
        ...

    def segments(self, chat: Chat, mode: Mode) -> list[tuple[str, bool]]:
        """The chat as the model reads it: runs of text, and whether the model itself has to sample them."""
        ...


@dataclass(frozen=True)
class Score:
    """A value with its 95 % interval over ``n`` items; an item is a numerator over a denominator."""

    name: str
    value: float
    low: float
    high: float
    n: int
    numerators: list[float] = field(repr=False)
    denominators: list[float] = field(repr=False)
    proportion: bool = False  # a mean of values in [0, 1]


@dataclass(frozen=True)
class Result:
    scores: list[Score]
    samples: list[dict[str, Any]]  # for people
    attempts: list[dict[str, Any]] = field(default_factory=list)  # of every item, for comparisons

    @property
    def unjudged(self) -> list[tuple[str, str]]:
        """Task and mode of every attempt without a reward, since the environment failed."""
        return [(attempt["task"], attempt["mode"]) for attempt in self.attempts if attempt["reward"] is None]
