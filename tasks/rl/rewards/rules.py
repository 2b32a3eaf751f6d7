"""Rewards by rule, each a number in [0, 1]: format, tool calls, thinking, language, repetition, length.

A rule that says nothing about a task, such as that of tool calls where there are no tools, gives no value.
The pathologies are those of GLM-4.5's general RL: mixed languages, repetition, faults of format.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from environments.episode import MalformedCall, read_call
from environments.interface import Message, Mode, Task
from environments.pathologies import language, repetition
from model.config import SPECIAL_TOKENS


@dataclass(frozen=True)
class Attempt:
    """What rules look at. ``valid``: every turn keeps to the chat format and ended by itself."""

    task: Task
    mode: Mode
    messages: Sequence[Message]
    valid: bool
    tokens: int  # sampled

    @property
    def answers(self) -> list[Message]:
        return [message for message in self.messages if message["role"] == "assistant"]

    @property
    def text(self) -> str:
        """Everything that the policy wrote as text."""
        return "\n".join(part for message in self.answers for part in _parts(message))


def judge_by_rules(
    attempt: Attempt, oracle: Sequence[Message], long_from: int, long_until: int
) -> dict[str, float]:
    """All rules that apply, by name. ``oracle``: the assistant messages of a solution, for its calls."""
    asked = "\n".join(
        part
        for message in attempt.messages
        if message["role"] in ("system", "user")
        for part in _parts(message)
    )
    found = {
        "format": float(attempt.valid),
        "thinking": thinking(attempt.answers, attempt.mode),
        "language": language(asked, attempt.text),
        "repetition": repetition(attempt.text),
        "length": length(attempt.tokens, long_from, long_until),
    }
    if attempt.task.tools:
        found["tools"] = float(attempt.valid and calls_are_exact(attempt.answers, oracle, attempt.task))
    return found


def calls_are_exact(answers: Sequence[Message], oracle: Sequence[Message], task: Task) -> bool:
    """Whether the calls are those of the oracle, in order, and each is one that its tool can take."""
    try:
        made = [read_call(call, task.tools) for call in _calls(answers)]
    except MalformedCall:
        return False
    return made == [read_call(call, task.tools) for call in _calls(oracle)]


def thinking(answers: Sequence[Message], mode: Mode) -> float:
    """1 where each message thinks just where its mode wants it, and writes no tag out as plain text."""
    right = all(bool(message.get("reasoning_content")) == (mode != "off") for message in answers)
    plain = not any(
        name in part for message in answers for part in _parts(message) for name in SPECIAL_TOKENS
    )
    return float(right and plain)


def length(tokens: int, long_from: int, long_until: int) -> float:
    """1 up to ``long_from`` tokens, 0 from ``long_until`` on, a straight line between."""
    return min(1.0, max(0.0, (long_until - tokens) / (long_until - long_from)))


def _parts(message: Message) -> Iterator[str]:
    for key in ("reasoning_content", "content"):
        if isinstance(part := message.get(key), str) and part:
            yield part


def _calls(messages: Sequence[Message]) -> list[dict]:
    return [call for message in messages for call in message.get("tool_calls") or ()]
