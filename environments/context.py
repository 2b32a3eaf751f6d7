"""Folding of a long agent's context (arXiv 2602.15763, section 4.2.4): what a policy is shown of its history.

A folding takes the context that the policy would see next, in OpenAI's form, and returns the one to show
instead. The loop goes on from what was returned::

    messages, new_segment = fold(messages)
    answer = policy(messages)
    messages = messages + [answer] + step.messages

``new_segment`` says that the returned context does not extend the one before: tokens already sampled stay the
record of the old segment, and a new one begins. Nothing given is changed, and a folded context that has not
grown folds to itself. A round is an assistant message with tool calls and the results that follow it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from environments.interface import Message

OMITTED = "The result of this call is omitted to save context."
KEPT_ROUNDS = 5  # section 4.2.4: k = 5
TOKEN_LIMIT = 32_768  # section 4.2.4: T = 32K

Count = Callable[[Sequence[Message]], int]  # tokens of a whole context


class Folded(NamedTuple):
    messages: list[Message]
    new_segment: bool


def keep_recent(messages: Sequence[Message], rounds: int = KEPT_ROUNDS) -> Folded:
    """Results older than the last ``rounds`` rounds become one fixed sentence; reasoning and calls stay."""
    if rounds < 0:
        raise ValueError(f"rounds is {rounds}: give a number of rounds to keep, 0 or more")
    calls = [index for index, message in enumerate(messages) if message.get("tool_calls")]
    first_kept = calls[-rounds] if 0 < rounds <= len(calls) else (0 if rounds else len(messages))
    folded = [
        {**message, "content": OMITTED} if index < first_kept and message["role"] == "tool" else message
        for index, message in enumerate(messages)
    ]
    return Folded(folded, folded != list(messages))


def discard_all(messages: Sequence[Message], count: Count, limit: int = TOKEN_LIMIT) -> Folded:
    """Above ``limit`` tokens every round is dropped and the task starts again from its prompt.

    What the user said, and answers without calls, stay. A prompt that is itself longer than the limit is
    returned as it is.
    """
    kept = list(messages)
    if count(kept) > limit:
        kept = [message for message in kept if message["role"] != "tool" and not message.get("tool_calls")]
    return Folded(kept, len(kept) < len(messages))


def hierarchical(
    messages: Sequence[Message], count: Count, rounds: int = KEPT_ROUNDS, limit: int = TOKEN_LIMIT
) -> Folded:
    """Always ``keep_recent``; what is still above ``limit`` tokens after that is discarded."""
    recent = keep_recent(messages, rounds)
    restarted = discard_all(recent.messages, count, limit)
    return Folded(restarted.messages, recent.new_segment or restarted.new_segment)
