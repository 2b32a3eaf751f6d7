"""Words of a Dockerfile: quotes, escapes and variables, as Docker reads them outside of RUN.

``$NAME``, ``${NAME}``, ``${NAME:-word}`` and ``${NAME:+word}``; nothing is replaced in single quotes; a
variable that is not set is empty. Raises ``ValueError`` with the end of a sentence.
"""

import string
from collections.abc import Mapping

BLANK = "\t\v\f\r "
LONGEST = 10_000  # characters of a value: lines that double one another stay small
DEEPEST = 16  # ${a:-${b:-...}}
NAME_START = frozenset(string.ascii_letters + "_")
NAME_REST = NAME_START | frozenset(string.digits)


def split_words(text: str) -> list[str]:
    """Split at blanks that are neither quoted nor escaped; quotes and escapes stay in the words."""
    words, word, quote, position = [], "", "", 0
    while position < len(text):
        character = text[position]
        if character == "\\" and quote != "'":
            word, position = word + text[position : position + 2], position + 2
            continue
        position += 1
        if not quote and character in BLANK:
            words.append(word)
            word = ""
            continue
        if character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        word += character
    return [word for word in [*words, word] if word]


def substitute(word: str, variables: Mapping[str, str]) -> str:
    """A word without its quotes and escapes, the variables put in."""
    text, end = _Reader(word, variables).read("", 0)
    assert end == len(word)
    return text


class _Parts:
    """The pieces of a value, which may not grow without end."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.length = 0

    def add(self, part: str) -> None:
        self.parts.append(part)
        self.length += len(part)
        if self.length > LONGEST:
            raise ValueError(f"makes a value of more than {LONGEST:,} characters")

    def text(self) -> str:
        return "".join(self.parts)


class _Reader:
    def __init__(self, word: str, variables: Mapping[str, str]) -> None:
        self.word, self.variables, self.position = word, variables, 0

    def read(self, stop: str, depth: int) -> tuple[str, int]:
        """The text up to the character ``stop`` (``""``: the end of the word), and where it stands."""
        if depth > DEEPEST:
            raise ValueError(f"has variables more than {DEEPEST} deep")
        parts = _Parts()
        while self.position < len(self.word):
            character = self.word[self.position]
            if character == stop:
                break
            parts.add(self._next(character, depth))
        else:
            if stop:
                raise ValueError("has a ${ without its }")
        return parts.text(), self.position

    def _next(self, character: str, depth: int) -> str:
        if character == "'":
            return self._single_quoted()
        if character == '"':
            return self._double_quoted(depth)
        if character == "$":
            return self._variable(depth)
        self.position += 1
        if character != "\\":
            return character
        self.position += 1  # an escape at the very end stands for nothing
        return self.word[self.position - 1 : self.position]

    def _single_quoted(self) -> str:
        end = self.word.find("'", self.position + 1)
        if end < 0:
            raise ValueError("has a quote ' that does not end")
        text, self.position = self.word[self.position + 1 : end], end + 1
        return text

    def _double_quoted(self, depth: int) -> str:
        parts = _Parts()
        self.position += 1
        while self.position < len(self.word):
            character = self.word[self.position]
            if character == '"':
                self.position += 1
                return parts.text()
            if character == "$":
                parts.add(self._variable(depth))
                continue
            if character == "\\" and self.word[self.position + 1 : self.position + 2] in ('"', "$", "\\"):
                self.position += 1
            parts.add(self.word[self.position])
            self.position += 1
        raise ValueError('has a quote " that does not end')

    def _variable(self, depth: int) -> str:
        self.position += 1
        if self.word[self.position : self.position + 1] != "{":
            name = self._name()
            return self.variables.get(name, "") if name else "$"
        self.position += 1
        name = self._name()
        if not name:
            raise ValueError("has ${ without the name of a variable behind it")
        value, operator = self.variables.get(name, ""), self.word[self.position : self.position + 2]
        if operator[:1] == "}":
            self.position += 1
            return value
        if operator not in (":-", ":+"):
            known = "${NAME}, ${NAME:-word} and ${NAME:+word}"
            raise ValueError(f"uses ${{{name[:40]}{operator}: only {known} are known")
        self.position += 2
        word, end = self.read("}", depth + 1)
        self.position = end + 1
        if operator == ":-":
            return value or word
        return word if value else ""

    def _name(self) -> str:
        start = self.position
        if start < len(self.word) and self.word[start] in NAME_START:
            self.position += 1
            while self.position < len(self.word) and self.word[self.position] in NAME_REST:
                self.position += 1
        return self.word[start : self.position]
