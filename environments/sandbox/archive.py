"""Tar archives by which files come into a container and out of it.

The engine unpacks them inside the container's root, where an entry replaces what lies at its path (a link is
replaced, not followed) and links above it lead nowhere else than inside.
"""

import io
import tarfile
import time
from collections.abc import Iterable

from environments.sandbox.files import Entry


def inside(path: str) -> str:
    """A plain absolute path without its leading slash. Raises ``ValueError`` for any other."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or not parts or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is no plain absolute path of a sandbox")
    return "/".join(parts)


def one_file(path: str, content: bytes, mode: int) -> bytes:
    return _pack([Entry(path, mode, content)])


def folders(paths: list[str]) -> bytes:
    """Folders, one in another, in place of what is at their paths."""
    return _pack([Entry(path, 0o755) for path in paths])


def folder(path: str, entries: Iterable[Entry]) -> bytes:
    """A folder in place of what is at its path: a file goes there first, which removes all that is in it."""
    below = (Entry(f"{path}/{entry.path}", entry.mode, entry.content, entry.link) for entry in entries)
    return _pack([Entry(path, 0o600, b""), Entry(path, 0o755), *below])


def first_file(stream: Iterable[bytes], limit: int) -> bytes:
    """The first ``limit`` bytes of the first entry. Raises ``tarfile.TarError``."""
    with tarfile.open(fileobj=_Stream(stream), mode="r|") as archive:
        file = archive.extractfile(archive.next() or tarfile.TarInfo())
        return file.read(limit) if file else b""


def _pack(entries: Iterable[Entry]) -> bytes:
    """All belong to root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            header = tarfile.TarInfo(entry.path)
            header.mode, header.mtime = entry.mode, int(time.time())
            if entry.link is not None:
                header.type, header.linkname = tarfile.SYMTYPE, entry.link
            elif entry.content is None:
                header.type = tarfile.DIRTYPE
            else:
                header.size = len(entry.content)
            archive.addfile(header, io.BytesIO(entry.content or b""))
    return buffer.getvalue()


class _Stream:
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._held = iter(chunks), b""

    def read(self, size: int) -> bytes:
        while len(self._held) < size and (chunk := next(self._chunks, b"")):
            self._held += chunk
        data, self._held = self._held[:size], self._held[size:]
        return data
