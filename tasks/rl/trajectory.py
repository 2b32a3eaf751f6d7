"""What a rollout leaves behind: token ids as read and sampled. Text is derived from them, never back.

A segment is one unbroken run of tokens: every sampled token saw exactly those before it. Where an agent
drops or folds its context, or thinking of earlier turns is cleared, a new segment begins; none is ever
rewritten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

CONTEXT = -1  # the weight version of a token that was read, not sampled


@dataclass(frozen=True)
class Turn:
    """One answer of a segment, and how its prompt came to stand there."""

    kind: str  # "start", "append", "realign", "fork": see ``tasks.rl.gateway.session``
    place: int  # tokens that stood there before; the prompt's others are read behind them
    answer: int  # place of the first token of the answer
    began: float  # Unix seconds of the request
    ended: float


@dataclass
class Segment:
    """Lists of equal length, a value a token, and a ``Turn`` an answer."""

    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)  # by the policy: what the loss is on
    logprobs: list[float] = field(default_factory=list)  # in the engine that sampled it; 0 for context
    versions: list[int] = field(
        default_factory=list
    )  # of the weights that sampled it; ``CONTEXT`` for context
    experts: np.ndarray | None = None  # int16 (tokens, MoE layers, K) as routed; None: not recorded
    turns: list[Turn] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, ids: Sequence[int]) -> None:
        """Append context."""
        self.ids += ids
        self.sampled += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [CONTEXT] * len(ids)

    def sample(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Append what an engine sampled. Raises ``ValueError`` where the lists differ in length."""
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(
                f"{len(ids)} tokens came with {len(logprobs)} log-probs and {len(versions)} versions"
            )
        self.ids += ids
        self.sampled += [True] * len(ids)
        self.logprobs += logprobs
        self.versions += versions

    def keep_experts(self, experts: np.ndarray) -> None:
        """The experts of all tokens so far, as an engine gives them; what is known already stays."""
        known = 0 if self.experts is None else len(self.experts)
        new = experts[known:]
        self.experts = new if self.experts is None else np.concatenate([self.experts, new])

    def cut(self, length: int) -> None:
        """Forget what stands behind ``length`` tokens."""
        for values in (self.ids, self.sampled, self.logprobs, self.versions):
            del values[length:]
        if self.experts is not None:
            self.experts = self.experts[:length]
        self.turns = [turn for turn in self.turns if turn.answer < length]

    @property
    def oldest(self) -> int | None:
        """The oldest weight version that sampled in it; None where nothing was sampled."""
        return min((version for version in self.versions if version != CONTEXT), default=None)


@dataclass
class Trajectory:
    """One rollout of one task, from its prompt to its reward."""

    id: str
    group: str  # rollouts of one prompt share it
    task: str
    environment: str
    family: str
    mode: str
    segments: list[Segment]
    reward: float | None  # None: the environment failed, nothing is said about the policy
    reason: str
    messages: list[dict[str, Any]] = field(default_factory=list)  # for people
    seconds: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)  # parts of the reward, counts

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(sum(segment.sampled) for segment in self.segments)

    def staleness(self, current: int) -> int:
        """Weight versions from the oldest token to ``current`` (paper section 4.1.2); 0 without tokens."""
        oldest = [segment.oldest for segment in self.segments if segment.oldest is not None]
        return current - min(oldest, default=current)

    def to_record(self) -> dict[str, Any]:
        """Plain data for people. Expert ids, which are large, are left out."""
        record = asdict(self)
        for segment in record["segments"]:
            del segment["experts"]
        return record


def mean_reward(trajectories: Iterable[Trajectory]) -> float | None:
    """Over those that have a reward; None where none has."""
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None
