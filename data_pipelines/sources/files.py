"""What every source offers: files, listed cheaply and read only when they are chosen.

A source is a module with ``files(source, notes, downloads) -> Iterator[SourceFile]``: ``source`` is its
entry in the recipe, ``notes`` takes what a reader of the corpus should know, ``downloads`` is a folder that
survives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data_pipelines.documents import Document

LONGEST_DOCUMENT = 8 * 2**20  # bytes; anything longer is data rather than a text to read
EXAMPLES = 5

# Suffix -> (language, kind).
LANGUAGES = {
    ".py": ("python", "code"), ".pyi": ("python", "code"), ".c": ("c", "code"), ".h": ("c", "code"),
    ".cc": ("cpp", "code"), ".cpp": ("cpp", "code"), ".hpp": ("cpp", "code"), ".go": ("go", "code"),
    ".rs": ("rust", "code"), ".java": ("java", "code"), ".js": ("javascript", "code"),
    ".ts": ("typescript", "code"), ".rb": ("ruby", "code"), ".php": ("php", "code"), ".sh": ("shell", "code"),
    ".sql": ("sql", "code"), ".lua": ("lua", "code"), ".scala": ("scala", "code"),
    ".swift": ("swift", "code"), ".md": ("markdown", "prose"), ".rst": ("rst", "prose"),
    ".txt": ("en", "prose"), "": ("en", "prose"),
}  # fmt: skip


class Unusable(Exception):
    """A single file or record that cannot become a document; its text is the reason."""


@dataclass(frozen=True)
class SourceFile:
    """One file of a source. ``read`` yields its documents and raises ``Unusable`` when it has none."""

    path: str
    package: str
    size: int  # bytes, as a measure of how much it will yield
    read: Callable[[], Iterator[Document]]


@dataclass
class Notes:
    """What ``sources.json`` says about a source beside its documents."""

    versions: dict[str, str] = field(default_factory=dict)  # of the packages that gave documents
    hashes: dict[str, str] = field(default_factory=dict)  # SHA-256 of downloaded files
    skipped: dict[str, dict] = field(default_factory=dict)  # reason -> how often, and the first names

    def skip(self, name: str, reason: str) -> None:
        entry = self.skipped.setdefault(reason, {"files": 0, "examples": []})
        entry["files"] += 1
        if len(entry["examples"]) < EXAMPLES:
            entry["examples"].append(name)

    def sentences(self, source: str) -> list[str]:
        return [
            f"source {source}: skipped {entry['files']}, because {reason}: {', '.join(entry['examples'])}"
            for reason, entry in sorted(self.skipped.items())
        ]


def decode(data: bytes) -> str:
    """UTF-8 text with Unix line ends. Raises ``Unusable``."""
    if b"\0" in data:
        raise Unusable("it is binary, not text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unusable("its bytes are not UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise Unusable("it is empty")
    return text


def read_text(path: Path) -> str:
    """The text of a file of bounded size. Raises ``Unusable``."""
    try:
        if path.stat().st_size > LONGEST_DOCUMENT:
            raise Unusable(f"it is longer than {LONGEST_DOCUMENT // 2**20} MB")
        return decode(path.read_bytes())
    except OSError as error:
        raise Unusable(f"it cannot be read ({error.strerror})") from None
