"""What a drafter of terminal tasks proposes, before any of it is tried: paper section 4.2.2.

Scripted families and models write the same thing; ``from_json`` reads a model's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, Self, get_args

from data_pipelines.task_building.candidate import Rejected

Difficulty = Literal["easy", "medium", "hard"]
DIFFICULTIES: tuple[str, ...] = get_args(Difficulty)
WORKDIR = "/app"
TEXTS = ("title", "instruction", "setup", "solution", "collect", "tests")
MAX_FILES = 500
MAX_BYTES = 2_000_000
MAX_TEXT = 20_000  # characters of one text of a draft


@dataclass(frozen=True)
class TerminalDraft:
    """A task in a folder ``/app`` of its own.

    ``files`` are what lies in ``/app`` at the start. ``setup`` are shell commands of the image, run in
    ``/app`` after the files are there. ``solution`` are the commands that solve the task. ``tests`` is a
    Python module of functions ``test_*`` that use the standard library alone; ``expected`` is what they
    find in ``/tests/expected.json``. ``collect`` are shell commands that run in the agent's sandbox once
    it is done: they try what was delivered and leave under ``/logs/artifacts`` what the tests judge.
    """

    title: str
    instruction: str
    solution: str
    tests: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    setup: str = ""
    collect: str = ""
    expected: Any = None
    difficulty: Difficulty = "medium"
    packages: tuple[str, ...] = ()  # Debian packages that are installed where their command is missing

    def __post_init__(self):
        for name in ("title", "instruction", "solution", "tests"):
            if not getattr(self, name).strip():
                raise Rejected(f"the draft has no {name}")
        for name in self.files:
            if not _inside(name):
                raise Rejected("the draft puts a file outside of its folder")
        if len(self.files) > MAX_FILES or sum(map(len, self.files.values())) > MAX_BYTES:
            raise Rejected("the draft has too many files or too much data")
        if self.difficulty not in DIFFICULTIES:
            raise Rejected("the draft has no known difficulty")
        if "def test_" not in self.tests:
            raise Rejected("the draft's tests have no function test_*")

    def to_record(self) -> dict[str, Any]:
        """What is kept of a rejected draft: its texts, and of its files the names and sizes."""
        texts = {name: getattr(self, name) for name in TEXTS}
        sizes = {name: len(content) for name, content in self.files.items()}
        return {**texts, "difficulty": self.difficulty, "file_sizes": sizes}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The draft that a model wrote as a JSON object, alone or within other text.

        Keys: those of ``TEXTS``, ``difficulty``, ``files`` (texts by path below /app). Raises ``Rejected``.
        """
        try:
            content = json.loads(text[text.index("{") : text.rindex("}") + 1])
        except ValueError:  # no brace, or what stands between them is no JSON
            raise Rejected("the draft is no JSON object") from None
        files = content.get("files") or {}
        if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
            raise Rejected("the draft's files are no texts by path")
        texts = {}
        for name in (*TEXTS, "difficulty"):
            value = content.get(name, "medium" if name == "difficulty" else "")
            if not isinstance(value, str):
                raise Rejected(f"the draft's {name} is no text")
            if len(value) > MAX_TEXT:
                raise Rejected(f"the draft's {name} is too long")
            texts[name] = value.replace("\r\n", "\n")
        return cls(**texts, files={name: value.encode() for name, value in files.items()})


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        bool(name)
        and not path.is_absolute()
        and ".." not in path.parts
        and "\0" not in name
        and "\n" not in name
    )
