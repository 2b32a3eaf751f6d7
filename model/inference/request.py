"""What is asked of the engine, and what it answers: token ids in, token ids out.

A server, a rollout worker and a person at a terminal all speak in these words.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt. Filters apply in the order top_k, top_p, min_p, after the temperature.

    ``stop_strings`` end a request as soon as the decoded text holds one of them; the engine needs a tokenizer
    for them. ``seed`` fixes a request's draws whatever runs beside it.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0  # 0 takes the most probable token
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0  # of the most probable token's probability
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    top_logprobs: int = 0  # also the log-probabilities of this many most probable tokens
    prompt_logprobs: bool = False  # also of every prompt token but the first

    def __post_init__(self):
        checks = {
            "max_new_tokens": self.max_new_tokens >= 0,
            "temperature": math.isfinite(self.temperature) and self.temperature >= 0,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "top_logprobs": 0 <= self.top_logprobs <= 20,
        }
        for name, holds in checks.items():
            if not holds:
                raise ValueError(f"{name} cannot be {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Token:
    """A sampled token, or a prompt token when its log-probability was asked for."""

    id: int
    logprob: float  # nats, of the model itself: before temperature and filters
    version: int  # of the weights that gave it
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), best first


@dataclass
class Completion:
    """A request's whole answer."""

    tokens: list[Token] = field(default_factory=list)  # a stop token included
    prompt: list[Token] = field(default_factory=list)  # with ``prompt_logprobs``: all but the first
    finish: Literal["stop", "length", "cancelled", "error"] | None = None  # None while it runs
    stop: int | str | None = None  # the stop token or string that ended it
    error: str = ""
    cached_tokens: int = 0  # of the prompt, taken from the prefix cache
    # int16 (tokens, MoE layers, K), with ``record_experts``: where each token that was read went, from the
    # first of the prompt to the last but one that was sampled.
    experts: np.ndarray | None = None

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


@dataclass(slots=True)
class Event:
    """What one step did for one request."""

    request: int
    tokens: list[Token] = field(default_factory=list)  # new ones
    completion: Completion | None = None  # when the request has ended
    prompt: list[Token] | None = None  # with ``prompt_logprobs``, once all of the prompt was read


class QueueFull(Exception):
    """The engine has as many waiting requests as it takes."""
