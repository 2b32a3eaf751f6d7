"""What every environment is: tasks, an episode to act in, a verifier, an oracle.

Demonstrations for fine-tuning, tasks for reinforcement learning and held-out evaluation all come from
here, so what is trained is what is verified. Messages have OpenAI's form (``role``, ``content``,
``reasoning_content``, ``tool_calls``). An agent's loop::

    episode = environment.episode()
    messages = await episode.reset(task)
    while not done:
        answer = policy(messages, task.tools)
        step = await episode.step(answer)
        messages, done = messages + [answer] + step.messages, step.done
    verdict = await episode.verify()
    await episode.close()
"""

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Self, get_args

from pipeline.errors import UserError
from pipeline.recipe.data import Mode

Message = dict[str, Any]
MODES: tuple[Mode, ...] = get_args(Mode)

HELDOUT_ONE_IN = 10  # share of all prompts that is never trained
DRAWS = 2000  # tries to find a prompt on the wanted side of the split


@dataclass(frozen=True)
class Task:
    """One problem: plain data, so it can be stored as JSON and taken up by another process."""

    id: str
    environment: str
    family: str
    messages: tuple[Message, ...]  # the prompt
    tools: tuple[dict, ...]  # OpenAI function schemas
    truth: dict[str, Any]  # for the episode and the oracle alone; never shown to a policy
    difficulty: int  # steps that the oracle needs
    seed: int
    heldout: bool
    provenance: str = (
        "generated"  # where the problem came from: a generator, a project and its patch, a corpus
    )
    licence: str = "Apache-2.0"  # of the prompt and of what comes with it

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """The task that ``to_record`` stored. Unknown keys (such as a mode beside it) are ignored."""
        missing = [name for name in REQUIRED if name not in record]
        if missing:
            raise UserError(
                f"task {record.get('id', '?')} lacks {', '.join(missing)}: make the task file again"
            )
        values = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        values["messages"], values["tools"] = tuple(values["messages"]), tuple(values["tools"])
        return cls(**values)


REQUIRED = tuple(item.name for item in fields(Task) if item.default is MISSING)


@dataclass(frozen=True)
class Draft:
    """What a generator draws: a task before it has a name and a side of the split."""

    messages: tuple[Message, ...]
    truth: dict[str, Any]
    difficulty: int
    tools: tuple[dict, ...] = ()


@dataclass(frozen=True)
class Step:
    """The environment's reply to an assistant message: tool results or the next user message, or the end."""

    messages: list[Message] = field(default_factory=list)
    done: bool = False


@dataclass(frozen=True)
class Verdict:
    """``reward`` in [0, 1]; None when the environment itself failed: dropped and counted, never scored."""

    reward: float | None
    reason: str


class Episode(ABC):
    """One attempt at one task. Many run at once in a process, so no method may block."""

    @abstractmethod
    async def reset(self, task: Task) -> list[Message]:
        """Begin; returns the prompt."""

    @abstractmethod
    async def step(self, message: Message) -> Step:
        """Take an assistant message. After ``done`` no more steps are allowed."""

    @abstractmethod
    async def verify(self) -> Verdict:
        """Judge what was done so far; an unfinished attempt scores 0."""

    async def close(self) -> None:  # noqa: B027 - most episodes hold nothing
        """Let go of whatever the episode holds."""


class Environment(ABC):
    """A generator, a verifier and an oracle for some families of tasks."""

    name: str
    families: tuple[str, ...]  # trained and evaluated
    evaluation_only: tuple[str, ...] = ()  # never trained: they show generalisation to unseen families
    provenance: str = "generated"  # of its tasks, see ``Task``
    licence: str = "Apache-2.0"

    def make_task(self, family: str, seed: int, heldout: bool = False) -> Task:
        """The task of that seed, the same every time, on the wanted side of the split.

        Raises ``UserError`` for an unknown family and for a training task of a family kept for evaluation.
        """
        if heldout:
            self._refuse_unknown(family)
        else:
            self.refuse_untrained(family)
        reserved = family in self.evaluation_only
        rng = random.Random(f"{self.name}/{family}/{seed}/{heldout}")
        for _ in range(DRAWS):
            draft = self.draw(family, rng)
            if reserved or is_heldout(draft.messages) == heldout:
                return self._name(draft, family, seed, heldout)
        raise UserError(
            f"{self.name}/{family} has no {'held-out' if heldout else 'training'} prompt in {DRAWS} draws"
        )

    def refuse_untrained(self, family: str) -> None:
        """Raises ``UserError`` for a family that no training task is made of."""
        self._refuse_unknown(family)
        if family in self.evaluation_only:
            raise UserError(f"{self.name}/{family} is kept for evaluation: leave it out of the training data")

    def _refuse_unknown(self, family: str) -> None:
        if family not in self.families + self.evaluation_only:
            known = ", ".join(self.families + self.evaluation_only)
            raise UserError(f"environment {self.name} has no family {family!r} (known: {known})")

    def _name(self, draft: Draft, family: str, seed: int, heldout: bool) -> Task:
        content = json.dumps([draft.messages, draft.truth], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        return Task(
            f"{self.name}/{family}/{digest}", self.name, family, draft.messages, draft.tools, draft.truth,
            draft.difficulty, seed, heldout, self.provenance, self.licence,
        )  # fmt: skip

    @abstractmethod
    def draw(self, family: str, rng: random.Random) -> Draft:
        """A random task of the family."""

    @abstractmethod
    def episode(self) -> Episode:
        """A new episode; call its ``reset`` with a task."""

    @abstractmethod
    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        """The assistant messages, in order, that solve the task with visible steps.

        With mode "off" they have no ``reasoning_content``. With "preserved" later turns build on the
        thinking of earlier ones; with "interleaved" each turn starts its thinking anew.
        """

    def mistake(self, task: Task, mode: Mode, rng: random.Random) -> Message | None:
        """A plausible wrong first message after which the oracle's messages still succeed; None where
        there is none.
        """
        return None


def is_heldout(messages: Sequence[Message]) -> bool:
    """Whether a prompt belongs to evaluation: decided by its text alone, in every family and recipe."""
    text = "\n".join(message["content"] for message in messages)
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % HELDOUT_ONE_IN == 0


async def play(
    environment: Environment, task: Task, answers: Sequence[Message]
) -> tuple[list[Message], Verdict]:
    """Send prepared assistant messages through an episode; returns the whole dialogue and the verdict."""
    episode = environment.episode()
    try:
        messages = await episode.reset(task)
        for answer in answers:
            step = await episode.step(answer)
            messages = [*messages, answer, *step.messages]
            if step.done:
                break
        return messages, await episode.verify()
    finally:
        await episode.close()
