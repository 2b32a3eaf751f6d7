"""Sampled tokens, or text, back to an assistant message: one at a time, tolerant of malformed output."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from model.chat.tokenizer import SPECIAL_NAMES, TextDecoder, Tokenizer
from model.chat.tokens import (
    CALL,
    END_CALL,
    END_KEY,
    END_OF_TEXT,
    END_THINK,
    END_VALUE,
    KEY,
    OBSERVATION,
    STOP_TOKENS,
    VALUE,
)
from model.config import SPECIAL_TOKENS

_LONGEST_NAME = max(map(len, SPECIAL_TOKENS))

# A piece of the answer in the form of OpenAI's streaming deltas: {"reasoning_content": text},
# {"content": text} or {"tool_calls": [one whole call with its index]}.
Delta = dict[str, Any]


@dataclass(frozen=True)
class Parsed:
    """One assistant turn.

    ``message`` has ``role``, ``content``, and where there are any ``reasoning_content`` and ``tool_calls``,
    whose arguments are an object. ``valid`` says whether the turn keeps to the format, ``reason`` names the
    first fault. ``finish`` is "stop", "tool_calls" or, without a stop token, "length".
    """

    message: dict[str, Any]
    valid: bool
    reason: str | None
    finish: str


def parse(
    tokenizer: Tokenizer, ids: Iterable[int], tools: list[dict] | None = None, thinking: bool = True
) -> Parsed:
    """The message in sampled token ids, which start right after the generation prompt.

    ``thinking`` tells which prompt that was. ``tools`` settles the type of arguments: a value is text where
    the schema says string, JSON where it says anything else, and where there is no schema JSON if it can be
    read as such.
    """
    parser = TokenParser(tokenizer, tools, thinking)
    for token_id in ids:
        parser.feed(token_id)
    return parser.finish()


def parse_text(text: str, tools: list[dict] | None = None, thinking: bool = True) -> Parsed:
    """The same for text, where names of special tokens always count as such. A stop token may be missing."""
    parser = TextParser(tools, thinking)
    parser.feed(text)
    return parser.finish(stopped=True)


class TokenParser:
    """Feed token ids one by one; each gives the deltas that became certain with it."""

    def __init__(self, tokenizer: Tokenizer, tools: list[dict] | None = None, thinking: bool = True):
        self._tokenizer = tokenizer
        self._turn = _Turn(tools, thinking)
        self._decoder = TextDecoder()

    def feed(self, token_id: int) -> list[Delta]:
        name = self._tokenizer.names_by_id.get(token_id)
        if token_id >= self._tokenizer.vocab_size:
            self._turn.blame(f"token {token_id} is not in the tokenizer's vocabulary")
        if name is None:
            return self._turn.text(self._decoder.feed(self._tokenizer.token_bytes(token_id)))
        return self._turn.text(self._decoder.flush()) + self._turn.special(name)

    def flush(self) -> list[Delta]:
        """The last deltas, where the tokens ended without a stop token: an unfinished character as U+FFFD."""
        return self._turn.text(self._decoder.flush())

    def finish(self, stopped: bool = False) -> Parsed:
        """The message so far. ``stopped``: the sampler stopped at a stop token and did not pass it on."""
        self.flush()
        return self._turn.finish(stopped)


class TextParser:
    """Feed text in any cuts; what may begin a special token is held back until that is known."""

    def __init__(self, tools: list[dict] | None = None, thinking: bool = True):
        self._turn = _Turn(tools, thinking)
        self._held = ""

    def feed(self, text: str) -> list[Delta]:
        text = self._held + text
        deltas, position = [], 0
        for match in SPECIAL_NAMES.finditer(text):
            deltas += self._turn.text(text[position : match.start()]) + self._turn.special(match.group())
            position = match.end()
        end = len(text) - _begun(text[position:])
        self._held = text[end:]
        return deltas + self._turn.text(text[position:end])

    def flush(self) -> list[Delta]:
        """The last deltas: what was held back was no special token."""
        held, self._held = self._held, ""
        return self._turn.text(held)

    def finish(self, stopped: bool = False) -> Parsed:
        """As ``TokenParser.finish``."""
        self.flush()
        return self._turn.finish(stopped)


@dataclass
class _Call:
    name: str = ""
    key: str = ""
    value: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


class _Turn:
    """The grammar of a turn: reasoning </think> content calls stop. ``_at`` names where text belongs now."""

    def __init__(self, tools: list[dict] | None, thinking: bool):
        self._types = _argument_types(tools or [])
        self._at = "reasoning" if thinking else "content"
        self._reasoning = ""
        self._content = ""
        self._calls: list[dict[str, Any]] = []
        self._call = _Call()
        self._stop: str | None = None
        self._fault: str | None = None

    def text(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._at == "reasoning":
            self._reasoning += text
            return [{"reasoning_content": text}]
        if self._at == "content":
            if self._calls and text.strip():
                self.blame("text after a tool call")
            self._content += text
            return [{"content": text}]
        if self._at in ("name", "key", "value"):
            setattr(self._call, self._at, getattr(self._call, self._at) + text)
        elif self._at in ("after key", "after value") and text.strip():
            self.blame("text between the parts of a tool call")
        elif self._at == "end":
            self.blame("text after the stop token")
        return []

    def special(self, name: str) -> list[Delta]:
        if self._at == "end":
            self.blame(f"{name} after the stop token")
        elif name in STOP_TOKENS:
            self._close_turn(name)
        elif self._at in ("reasoning", "content"):
            return self._special_outside_call(name)
        else:
            return self._special_inside_call(name)
        return []

    def finish(self, stopped: bool) -> Parsed:
        cut_off = self._stop is None and not stopped
        if cut_off:
            self.blame("it ended without a stop token")
        elif self._stop is None:
            self._close_turn(OBSERVATION if self._calls else END_OF_TEXT)
        message: dict[str, Any] = {"role": "assistant", "content": self._content}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        finish = "tool_calls" if self._calls else "stop"
        return Parsed(message, self._fault is None, self._fault, "length" if cut_off else finish)

    def blame(self, reason: str) -> None:
        self._fault = self._fault or reason

    def _close_turn(self, stop: str) -> None:
        if self._at == "reasoning":
            self.blame("the reasoning was not closed with </think>")
        elif self._at != "content":
            self.blame("a tool call was not closed")
        elif bool(self._calls) != (stop == OBSERVATION):
            self.blame(
                f"{stop} cannot follow {'a tool call' if self._calls else 'an answer without tool calls'}"
            )
        elif not self._calls and not self._content.strip():
            self.blame("the answer is empty")
        self._stop, self._at = stop, "end"

    def _special_outside_call(self, name: str) -> list[Delta]:
        if name == END_THINK and self._at == "reasoning":
            self._at = "content"
        elif name == CALL:
            if self._at == "reasoning":
                self.blame("a tool call inside the reasoning")
            self._call, self._at = _Call(), "name"
        else:
            self.blame(f"{name} out of place in the {self._at}")
            return self.text(name)
        return []

    def _special_inside_call(self, name: str) -> list[Delta]:
        at, call = self._at, self._call
        if name == KEY and at in ("name", "after value"):
            call.key, call.value, self._at = "", "", "key"
        elif name == END_KEY and at == "key":
            self._at = "after key"
        elif name == VALUE and at == "after key":
            self._at = "value"
        elif name == END_VALUE and at == "value":
            self._add_argument()
            self._at = "after value"
        elif name == END_CALL and at in ("name", "after value"):
            self._at = "content"
            return self._add_call()
        else:
            # The call cannot be read: leave it out, up to its end.
            self.blame(f"{name} out of place in a tool call")
            self._at = "content" if name == END_CALL else "broken call"
        return []

    def _add_argument(self) -> None:
        call = self._call
        if call.key in call.arguments:
            self.blame(f"the argument {call.key!r} of a tool call stands twice")
        types = self._types.get(call.name.strip(), {}).get(call.key)
        try:
            call.arguments[call.key] = _read_value(call.value, types)
        except ValueError:
            self.blame(f"the argument {call.key!r} of {call.name.strip()} is not JSON")
            call.arguments[call.key] = call.value

    def _add_call(self) -> list[Delta]:
        name = self._call.name.strip()
        if not name:
            self.blame("a tool call without a function name")
            return []
        index = len(self._calls)
        function = {"name": name, "arguments": self._call.arguments}
        self._calls.append({"id": f"call_{index}", "type": "function", "function": function})
        return [{"tool_calls": [{"index": index, **self._calls[-1]}]}]


def _begun(text: str) -> int:
    """Length of the longest end of the text that may be the beginning of a special token."""
    for length in range(min(len(text), _LONGEST_NAME - 1), 0, -1):
        if any(name.startswith(text[-length:]) for name in SPECIAL_TOKENS):
            return length
    return 0


def _argument_types(tools: list[dict]) -> dict[str, dict[str, list[str] | None]]:
    """For each function and argument the types that its schema allows; None where it names none."""
    types: dict[str, dict[str, list[str] | None]] = {}
    for tool in tools:
        function = tool.get("function") or tool
        properties = (function.get("parameters") or {}).get("properties") or {}
        types[function["name"]] = {
            key: [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type")
            for key, schema in properties.items()
        }
    return types


def _read_value(text: str, types: list[str] | None) -> Any:
    """An argument's value. Raises ``ValueError`` where its schema excludes text and it is not JSON."""
    if types is not None and "string" in types and not (text == "null" and "null" in types):
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if types is None:
            return text
        raise ValueError("not JSON") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
