"""What a terminal shows of a dialogue, and how a pipe gets less: answers without decoration."""

import contextlib
import json
import os
import re
from typing import TextIO

from model.chat.parser import Delta

DIM, ACCENT, FAULT, PLAIN = "\033[2m", "\033[36m", "\033[31m", "\033[0m"
# A model's output must not steer the terminal, and what was no UTF-8 cannot be written.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Screen:
    def __init__(self, source: TextIO, target: TextIO, faults: TextIO):
        """A terminal gets faults between the answers, a pipe apart from them."""
        self._source, self._target, self._faults = source, target, faults
        self._people = source.isatty() and target.isatty()
        self._colours = self._people and "NO_COLOR" not in os.environ
        self._at = ""  # what was written last: "reasoning", "content", "call"
        self._visible = self._thought = False  # of this answer: something to see, something that was hidden
        if self._people:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  line editing and history in input()

    @property
    def people(self) -> bool:
        """Whether this is a terminal, not a pipe."""
        return self._people

    def read(self, prompt: str) -> str:
        """A line. Raises ``EOFError`` at the end of the input."""
        if self._people:
            return input(prompt)
        line = self._source.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def greet(self, text: str) -> None:
        if self._people:
            self.note(text)

    def note(self, text: str) -> None:
        self._write(f"{self._styled(DIM, _harmless(text))}\n")

    def fault(self, text: str) -> None:
        text = self._styled(FAULT, _harmless(f"error: {text}"))
        print(text, file=self._target if self._people else self._faults, flush=True)

    def show(self, delta: Delta) -> None:
        """A part of an answer."""
        for call in delta.get("tool_calls", []):
            self._begin("call")
            self._visible = True
            arguments = call["function"]["arguments"].items()
            text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments)
            self._write(self._styled(ACCENT, _harmless(f"{call['function']['name']}({text})")))
        if reasoning := delta.get("reasoning_content"):
            self._thought = True
            if self._people:
                self._begin("reasoning")
                self._write(self._styled(DIM, _harmless(reasoning)))
        if content := delta.get("content"):
            self._begin("content")
            self._visible |= not content.isspace()
            self._write(_harmless(content))

    def end_answer(self, amount: str, more: str = "") -> None:
        """``amount`` and ``more`` are about the answer; a pipe gets ``amount`` where it would get nothing."""
        if not self._people and not self._visible:
            self._write(f"({'only thinking' if self._thought else 'no text'}, {amount})")
        self._write("\n")
        self._at = ""
        self._visible = self._thought = False
        if self._people:
            self.note(amount + more)

    def _begin(self, kind: str) -> None:
        """Reasoning, content and each call stand on lines of their own."""
        if self._at and (kind == "call" or kind != self._at):
            self._write("\n")
        self._at = kind

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{PLAIN}" if self._colours else text

    def _write(self, text: str) -> None:
        self._target.write(text)
        self._target.flush()


def _harmless(text: str) -> str:
    return CONTROLS.sub("\ufffd", text)
