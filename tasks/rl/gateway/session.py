"""One rollout behind the gateway: an agent's chat requests become segments of tokens, none cut anew.

A request holds messages. Those that the gateway itself answered with stand for the tokens that were sampled,
whatever the agent made of them as text; what is new is rendered behind them. The prompt is then compared with
the segments so far (paper section 4.1.2, token in, token out):

- *append*: a segment is its beginning. What is new is read as context behind it.
- *realign*: it leaves a segment inside the last answer, for instance at its stop token. What the agent did
  not take over of that answer is cut off, and no loss is on it.
- *fork*: anything else, such as folded context or thinking that is cleared. A new segment begins with the
  whole prompt as context; the segments before it stay as they are.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model.chat.renderer import SampledTurn, render
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import Thinking
from tasks.rl.trajectory import Segment, Turn

Message = dict[str, Any]


@dataclass(eq=False)
class _Branch:
    """A segment, and where the answer that was sampled last begins in it."""

    segment: Segment
    answer_start: int = 0
    busy: bool = False  # a prompt was read and its answer is being sampled
    closed: bool = False  # its history was folded away: nothing continues it


@dataclass(frozen=True)
class Prompt:
    """What is to be continued: ``ids`` are all of the branch's tokens."""

    branch: _Branch
    ids: list[int]
    thinking: bool
    kind: str  # of ``Turn``
    place: int
    began: float


@dataclass
class Session:
    tokenizer: Tokenizer
    branches: list[_Branch] = field(default_factory=list)
    turns: list[tuple[str, SampledTurn]] = field(default_factory=list)  # by what their messages say
    counts: Counter = field(default_factory=Counter)  # of start, append, realign, fork

    @property
    def segments(self) -> list[Segment]:
        """In which something was sampled."""
        return [branch.segment for branch in self.branches if any(branch.segment.sampled)]

    def begin(
        self,
        messages: Sequence[Message],
        tools: list[dict] | None,
        thinking: Thinking,
        folded: bool = False,
    ) -> Prompt:
        """The prompt of a request. Its branch is taken until ``finish`` or ``abandon``.

        ``folded``: the agent left something out of its history. All branches so far are closed, even one
        that the rest continues or repeats: its answers were taken over, and are not sampled again.

        Raises ``ValueError`` for messages that cannot be rendered.
        """
        sampled = self._sampled(messages)
        ids = render(self.tokenizer, list(messages), tools, thinking, True, sampled).ids
        for branch in self.branches if folded else []:
            branch.closed = True
        branch, kind = self._place(ids)
        self.counts[kind] += 1
        place = len(branch.segment)
        branch.segment.read(ids[place:])
        branch.busy = True
        return Prompt(branch, list(branch.segment.ids), thinking.enabled, kind, place, time.time())

    def finish(
        self,
        prompt: Prompt,
        ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        message: Message,
        experts: np.ndarray | None = None,
    ) -> None:
        """Record an answer. ``message`` is what the agent is told, ``ids`` end with the stop token if any.

        ``experts`` are those of all tokens that were read, from the first of the prompt on.
        """
        branch, segment = prompt.branch, prompt.branch.segment
        branch.busy, branch.answer_start = False, len(segment)
        segment.turns.append(Turn(prompt.kind, prompt.place, len(segment), prompt.began, time.time()))
        segment.sample(ids, logprobs, versions)
        if experts is not None:
            segment.keep_experts(experts)
        said = ids[:-1] if ids and ids[-1] in self.tokenizer.stop_ids else ids
        self.turns.append((_said(message), SampledTurn(tuple(said), prompt.thinking)))

    def abandon(self, prompt: Prompt) -> None:
        """No answer came. The branch is free again; its context stays, to be read by the next request."""
        prompt.branch.busy = False

    def _sampled(self, messages: Sequence[Message]) -> dict[int, SampledTurn]:
        """The turns that the assistant messages of a request are, each turn at most once, in their order."""
        left, found = list(self.turns), {}
        for index, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            said = _said(message)
            place = next((place for place, (words, _) in enumerate(left) if words == said), None)
            if place is not None:
                found[index] = left.pop(place)[1]
        return found

    def _place(self, ids: list[int]) -> tuple[_Branch, str]:
        """The branch that the prompt continues, cut to what both have, or a new one; and which it was."""
        best, shared = None, -1
        for branch in self.branches:
            common = _common(branch.segment.ids, ids)
            reaches = common == len(branch.segment) or branch.answer_start and common >= branch.answer_start
            if reaches and not (branch.busy or branch.closed) and common > shared:
                best, shared = branch, common
        if best is None:
            kind = "fork" if self.branches else "start"
            self.branches.append(_Branch(Segment()))
            return self.branches[-1], kind
        kind = "append" if shared == len(best.segment) else "realign"
        best.segment.cut(shared)
        return best, kind


def _said(message: Message) -> str:
    """What an assistant's message says, however it is written down, without thinking: some leave that out."""
    calls = [call.get("function") or call for call in message.get("tool_calls") or []]
    return json.dumps(
        [(message.get("content") or "").strip(), [[call["name"], _arguments(call)] for call in calls]],
        sort_keys=True,
    )


def _arguments(call: dict) -> Any:
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments
    return arguments or {}


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    most = min(len(left), len(right))
    differing = np.flatnonzero(np.asarray(left[:most]) != np.asarray(right[:most]))
    return int(differing[0]) if len(differing) else most
