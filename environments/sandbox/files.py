"""Files of the host as values: read first, as whoever we are, then written as the owner of a sandbox."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """A file (``content``), a symbolic link (``link``) or a folder (neither) at a relative path."""

    path: str
    mode: int
    content: bytes | None = None
    link: str | None = None


def read_folder(folder: Path) -> list[Entry]:
    """All that lies in a folder, each folder before what is in it; no devices, pipes and sockets."""
    entries: list[Entry] = []
    for found in sorted(os.scandir(folder), key=lambda found: found.name):
        if found.is_symlink():
            entries.append(Entry(found.name, 0o777, link=os.readlink(found.path)))
        elif found.is_dir():
            mode = found.stat().st_mode & 0o7777
            below = read_folder(Path(found.path))
            entries.append(Entry(found.name, mode))
            entries += [
                Entry(f"{found.name}/{entry.path}", entry.mode, entry.content, entry.link) for entry in below
            ]
        elif found.is_file():
            entries.append(read_file(Path(found.path)))
    return entries


def read_file(file: Path) -> Entry:
    return Entry(file.name, file.stat().st_mode & 0o7777, file.read_bytes())


def digest(entries: Iterable[Entry]) -> str:
    """The same for the same names, modes and contents."""
    total = hashlib.sha256()
    for entry in entries:
        content = "" if entry.content is None else hashlib.sha256(entry.content).hexdigest()
        total.update(repr((entry.path, entry.mode, content, entry.link)).encode(errors="surrogateescape"))
    return total.hexdigest()
