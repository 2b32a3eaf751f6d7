"""The Dockerfiles that both backends take: one stage of FROM, ARG, ENV, WORKDIR, COPY, RUN, USER and SHELL.

    for instruction in read_dockerfile(folder):
        match instruction.kind: ...

What is not understood raises ``ImageError`` with the instruction and its line, before anything is built.
CMD, ENTRYPOINT, EXPOSE, LABEL, MAINTAINER and STOPSIGNAL are read and left out: they change nothing that a
task sees, as the backend brings the command and there is no network.
"""

import json
import posixpath
import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from environments.sandbox.interface import ImageError
from environments.sandbox.substitution import split_words, substitute

Kind = Literal["FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER"]

# What Python's images in Docker's library set before the first line; ENV PATH=/mine:$PATH builds on it.
BASE_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
)

UNSEEN = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL"})
REFUSED = {
    "ADD": "use COPY",
    "HEALTHCHECK": "nothing would run it",
    "ONBUILD": "write the instruction itself",
    "VOLUME": "a sandbox has no volumes",
}
LONGEST = 100_000  # characters of a Dockerfile

COMMENT = re.compile(r"\s*#")
CONTINUES = re.compile(r"\\[ \t]*$")
DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+)")
QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.")
HEREDOC = re.compile(r"(?:^|\s)\d*<<-?(?!<)")


@dataclass(frozen=True)
class Copy:
    """Paths of the context, without a leading ``/``, and an absolute target.

    As in Docker a source may hold ``*``, ``?`` and ``[...]``, a folder stands for what is in it, and a target
    that ends in ``/`` is a folder.
    """

    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class Instruction:
    """One instruction with its variables put in (RUN's are left to its shell).

    ``value`` by kind: FROM the image; ARG a pair (name, value or None), ENV pairs (name, value): both are in
    the environment of every RUN below, and ENV wins; WORKDIR an absolute path; COPY a ``Copy``; RUN a text
    for ``/bin/sh -c`` or a tuple of arguments; USER ``name[:group]``.
    """

    kind: Kind
    value: str | tuple | Copy
    line: int


def read_dockerfile(folder: Path) -> tuple[Instruction, ...]:
    """The instructions of ``folder/Dockerfile``. Raises ``ImageError``."""
    file = folder / "Dockerfile"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ImageError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ImageError(f"{file} is not text in UTF-8") from None
    if (folder / ".dockerignore").exists():
        raise ImageError(
            f"{folder / '.dockerignore'} is not supported: leave out of the folder what it names"
        )
    return parse_dockerfile(text)


def parse_dockerfile(text: str, environment: Mapping[str, str] = BASE_ENVIRONMENT) -> tuple[Instruction, ...]:
    """The instructions in order, FROM first (its ARGs are put in); ``environment`` is that of the base image.

    Raises ``ImageError``, and nothing else, whatever the text.
    """
    if len(text) > LONGEST:
        raise ImageError(f"the Dockerfile has more than {LONGEST:,} characters")
    if "\0" in text:
        raise ImageError("the Dockerfile holds a zero byte: it is not a text")
    parser = _Parser(environment)
    for line, statement in _statements(text):
        word, _, rest = re.sub(r"[\t\v\f\r ]+", " ", statement, count=1).partition(" ")
        try:
            parser.take(word.upper(), rest.strip(), line)
        except ValueError as error:
            raise ImageError(f"Dockerfile line {line}: {word.upper()[:40]} {error}") from None
    if not parser.based:
        raise ImageError("the Dockerfile has no FROM")
    return tuple(parser.instructions)


def _statements(text: str) -> list[tuple[int, str]]:
    """Whole instructions with the number of their first line: comments and blank lines out, lines joined."""
    lines = [line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]
    statements, parts, start, directives = [], [], 0, True
    for number, line in enumerate(lines, 1):
        directives = directives and _check_directive(line, number)
        if COMMENT.match(line) or not line.strip():
            continue
        start = start or number
        if not (match := CONTINUES.search(line)):
            statements.append((start, "".join([*parts, line]).strip()))
            parts, start = [], 0
            continue
        if line[: match.start()].endswith("\\"):
            raise ImageError(f"Dockerfile line {number}: two backslashes at its end are not supported")
        parts.append(line[: match.start()])
    if parts:
        statements.append((start, "".join(parts).strip()))
    return [(line, statement) for line, statement in statements if statement]


def _check_directive(line: str, number: int) -> bool:
    """Whether this line of the top is a directive; ``escape`` would change how all others are read."""
    match = DIRECTIVE.match(line.strip())
    if match and match[1].lower() == "escape" and match[2] != "\\":
        raise ImageError(f"Dockerfile line {number}: the directive escape={match[2][:20]} is not supported")
    return match is not None


class _Parser:
    """What the lines so far have set."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.instructions: list[Instruction] = []
        self.based = False
        self.workdir = "/"
        self.shell: tuple[str, ...] | None = None
        self.environment = dict(environment)
        self.arguments: dict[str, str] = {}
        self.above_from: dict[str, str] = {}  # these count in FROM, and below it where ARG names them again

    def take(self, word: str, rest: str, line: int) -> None:
        """Read one instruction. Raises ``ValueError`` with the end of a sentence."""
        if not self.based and word not in ("FROM", "ARG"):
            raise ValueError("stands before FROM")
        if word in UNSEEN:
            return
        read = getattr(self, f"_read_{word.lower()}", None) if word.isascii() and word.isalpha() else None
        if read is None:
            raise ValueError(f"is not supported: {REFUSED.get(word, 'it is no instruction known here')}")
        if not rest:
            raise ValueError("says nothing")
        self.instructions += [Instruction(kind, value, line) for kind, value in read(rest)]

    def _put_in(self, word: str) -> str:
        return substitute(word, ChainMap(self.environment, self.arguments))

    def _read_from(self, rest: str):
        if self.based:
            raise ValueError("comes a second time: only one stage is supported")
        words = _no_flags(rest).split()
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            raise ValueError("takes an image, or an image AS a name")
        image = substitute(words[0], self.arguments)
        if not image:
            raise ValueError("names no image once its variables are put in")
        self.based, self.above_from, self.arguments = True, self.arguments, {}
        return [("FROM", image)]

    def _read_arg(self, rest: str):
        pairs = []
        for word in split_words(rest):
            name, equals, value = word.partition("=")
            name = self._name(name)
            default = self._put_in(value) if equals else self.above_from.get(name)
            pairs.append((name, default))
            if default is not None:
                self.arguments[name] = default
        return [("ARG", pair) for pair in pairs] if self.based else []

    def _read_env(self, rest: str):
        words = split_words(rest)
        if "=" in words[0]:
            if wrong := [word for word in words if "=" not in word]:
                raise ValueError(f"has {wrong[0][:40]!r} without a =")
            raw = [word.split("=", 1) for word in words]
        else:
            raw = [re.split(r"[\t\v\f\r ]+", rest, maxsplit=1)]
            if len(raw[0]) < 2:
                raise ValueError("has a name without a value")
        pairs = tuple((self._name(name), self._put_in(value)) for name, value in raw)
        self.environment.update(pairs)
        return [("ENV", pairs)]

    def _name(self, word: str) -> str:
        name = self._put_in(word)
        if not name or "=" in name:
            raise ValueError(f"has no name for a variable in {word[:40]!r}")
        return name

    def _read_workdir(self, rest: str):
        self.workdir = _absolute(self.workdir, self._put_in(rest))
        return [("WORKDIR", self.workdir)]

    def _read_copy(self, rest: str):
        words = [self._put_in(word) for word in _json_words(_no_flags(rest)) or rest.split()]
        if len(words) < 2 or not all(words):
            raise ValueError("takes sources and a target")
        if any("<<" in word[:3] for word in words):
            raise ValueError("with a here-document is not supported: put the file beside the Dockerfile")
        *sources, target = words
        for source in sources:
            if ".." in source.split("/"):
                raise ValueError(f"source {source[:80]!r} leads out of the folder of the Dockerfile")
        relative = [posixpath.normpath(source.lstrip("/") or ".") for source in sources]
        folder = target.endswith("/") or target in (".", "..") or target.endswith(("/.", "/.."))
        path = _absolute(self.workdir, target)
        if len(sources) > 1 and not folder:
            raise ValueError("has several sources: its target must end in /")
        return [("COPY", Copy(tuple(relative), path.rstrip("/") + "/" if folder else path))]

    def _read_run(self, rest: str):
        arguments = _json_words(_no_flags(rest))
        if arguments is None and HEREDOC.search(QUOTED.sub("''", rest)):
            raise ValueError("with a here-document is not supported: COPY a script and run it")
        if arguments is not None and (not arguments or not arguments[0]):
            raise ValueError("says nothing")
        if arguments is None and self.shell:
            arguments = (*self.shell, rest)
        return [("RUN", rest if arguments is None else arguments)]

    def _read_user(self, rest: str):
        user = self._put_in(rest)
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", user):
            raise ValueError(f"takes name or name:group, not {user[:40]!r}")
        return [("USER", user)]

    def _read_shell(self, rest: str):
        shell = _json_words(rest)
        if not shell:
            raise ValueError('takes a list in JSON, such as ["/bin/bash", "-c"]')
        self.shell = shell
        return []


def _absolute(workdir: str, path: str) -> str:
    if not path:
        raise ValueError("names no path once its variables are put in")
    joined = posixpath.normpath(posixpath.join(workdir, path))
    return "/" + joined.lstrip("/")  # POSIX would keep two leading slashes


def _no_flags(rest: str) -> str:
    if rest.startswith("--"):
        raise ValueError(f"with {rest.split()[0].split('=')[0][:40]} is not supported")
    return rest


def _json_words(rest: str) -> tuple[str, ...] | None:
    """The strings of a list in JSON; None where it is none, which Docker takes for plain text."""
    if not rest.startswith("["):
        return None
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(word, str) for word in words):
        raise ValueError("has a list with something other than strings in it")
    if any("\0" in word for word in words):
        raise ValueError("has a zero byte in it")
    return tuple(words)
