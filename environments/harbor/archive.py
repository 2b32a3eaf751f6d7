"""Archives from outside, unpacked so that nothing lands outside the folder and nothing grows without bound.

``unpack_task`` takes a tar or zip file of task folders and refuses it at the first entry without a place
there. ``unpack_work`` takes the tar that a sandbox made of an agent's work: what has no place is left out
and counted, since whoever made it may have meant harm. Only folders, regular files and links that stay
inside are ever made; owners and set-user bits are dropped, and an owner may always read.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from pipeline.errors import UserError

MAX_ENTRIES = 50_000
MAX_BYTES = 256 * 2**20  # of all files together, unpacked
CHUNK = 2**20
COMPRESSIONS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
# What the readers raise for bytes that are no archive; RuntimeError: a zip file with a password.
UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError, ValueError,
    NotImplementedError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    name: str
    kind: str  # "folder", "file", "link" or "other"
    mode: int
    target: str  # of a link
    size: int  # of a file, as the archive says
    open: Callable[[], IO[bytes]]  # a file's content


class _Refused(Exception):
    """An entry that has no place in the folder, in words."""


def unpack_task(archive: Path, folder: Path) -> None:
    """Unpack a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip into ``folder``, which must be empty or new.

    Raises ``UserError`` with one sentence; what was unpacked until then is left for the caller to remove.
    """
    try:
        with archive.open("rb") as file:
            zipped = zipfile.is_zipfile(file)
            file.seek(0)
            if zipped:
                _unpack(_zip_entries(file), folder, strict=True)
            else:
                with _expanded(file) as plain:
                    _unpack(_tar_entries(plain), folder, strict=True)
    except _Refused as error:
        raise UserError(f"{archive} holds {error}: it is not unpacked") from None
    except UNREADABLE as error:
        raise UserError(f"{archive} is not an archive that can be read ({error})") from None
    except OSError as error:
        raise UserError(f"{archive} cannot be unpacked ({error.strerror or error})") from None


def unpack_work(content: bytes, folder: Path, source: str) -> int:
    """Unpack the plain tar that a sandbox made inside its folder ``source``; returns how many entries were
    left out. Links to absolute places below ``source`` become relative ones. Raises ``ValueError`` when it
    is no tar or has too many entries.
    """
    try:
        return _unpack(_relative(_tar_entries(io.BytesIO(content)), source), folder, strict=False)
    except (*UNREADABLE, _Refused) as error:
        raise ValueError(f"no archive that can be read: {error}") from None


@contextlib.contextmanager
def _expanded(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The archive without its compression, in a temporary file: tarfile trusts the sizes it reads, and a few
    compressed bytes can hold headers of gigabytes.
    """
    start = file.read(6)
    file.seek(0)
    opener = next((opener for magic, opener in COMPRESSIONS if start.startswith(magic)), None)
    if opener is None:
        yield file
        return
    with opener(file) as source, tempfile.TemporaryFile() as plain:
        while chunk := source.read(CHUNK):
            if plain.write(chunk) and plain.tell() > MAX_BYTES:
                raise _Refused(f"more than {MAX_BYTES // 2**20} MB")
        plain.seek(0)
        yield plain


def _tar_entries(file: IO[bytes]) -> Iterator[_Entry]:
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for item in archive:
            kinds = (("folder", item.isdir()), ("file", item.isreg()), ("link", item.issym()))
            kind = next((kind for kind, holds in kinds if holds), "other")
            opened = partial(archive.extractfile, item)
            yield _Entry(item.name, kind, item.mode, item.linkname, item.size, opened)


def _relative(entries: Iterator[_Entry], source: str) -> Iterator[_Entry]:
    for entry in entries:
        target = PurePosixPath(entry.target)
        if entry.kind == "link" and target.is_relative_to(source) and ".." not in target.parts:
            inside = os.path.relpath(target.relative_to(source), PurePosixPath(entry.name).parent)
            entry = replace(entry, target=inside)
        yield entry


def _zip_entries(file: IO[bytes]) -> Iterator[_Entry]:
    with zipfile.ZipFile(file) as archive:
        for item in archive.infolist():
            mode = item.external_attr >> 16
            regular = stat.S_IFMT(mode) in (0, stat.S_IFREG)
            kind = "folder" if item.is_dir() else "file" if regular else "other"
            opened = partial(archive.open, item)
            yield _Entry(item.filename, kind, mode or 0o644, "", item.file_size, opened)


def _unpack(entries: Iterator[_Entry], folder: Path, strict: bool) -> int:
    """Make all entries, links last, so that nothing is written through one; returns the number left out."""
    folder.mkdir(parents=True, exist_ok=True)
    links: list[_Entry] = []
    modes: list[tuple[Path, int]] = []
    budget, dropped = MAX_BYTES, 0
    for number, entry in enumerate(entries):
        if number >= MAX_ENTRIES:
            raise _Refused(f"more than {MAX_ENTRIES} entries")
        if entry.kind == "link":
            links.append(entry)
            continue
        try:
            budget -= _make(entry, folder, budget)
            if entry.kind == "folder":
                modes.append((folder / _place(entry), entry.mode & 0o777 | 0o700))
        except (_Refused, FileExistsError, NotADirectoryError, IsADirectoryError):
            if strict:
                raise
            dropped += 1
    for entry in links:
        try:
            _make_link(entry, folder)
        except (_Refused, FileExistsError, NotADirectoryError):
            if strict:
                raise
            dropped += 1
    for path, mode in reversed(modes):
        path.chmod(mode)
    return dropped


def _place(entry: _Entry) -> PurePosixPath:
    """Where an entry goes, relative to the folder."""
    path = PurePosixPath(entry.name)
    shown = repr(entry.name[:200])
    if entry.kind == "other":
        raise _Refused(f"the entry {shown}, which is neither a file nor a folder")
    if path.is_absolute() or "\\" in entry.name or "\0" in entry.name or entry.name[1:2] == ":":
        raise _Refused(f"the absolute name {shown}")
    if ".." in path.parts:
        raise _Refused(f"the name {shown}, which leads out of the folder")
    return path


def _make_link(entry: _Entry, folder: Path) -> None:
    """A link may go up first and then down, and never above the folder. Its own folder is a real one, so each
    step up is what it seems; a step up after one down could start at another link.
    """
    place = _place(entry)
    path = folder / place
    parts = PurePosixPath(entry.target).parts
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    path.parent.mkdir(parents=True, exist_ok=True)
    moved = path.parent.resolve() != folder.resolve() / place.parent
    if moved or not parts or entry.target.startswith("/") or ".." in parts[ups:] or ups >= len(place.parts):
        raise _Refused(f"the link {entry.name[:200]!r}, which leads out of the folder")
    path.symlink_to(entry.target)


def _make(entry: _Entry, folder: Path, budget: int) -> int:
    """Make a folder or a file; returns its bytes. Sizes are counted as they come, whatever the entry says."""
    path = folder / _place(entry)
    if entry.kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
        return 0
    if entry.size > budget:
        raise _Refused(f"more than {MAX_BYTES // 2**20} MB")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file, entry.open() as source:
        os.fchmod(file.fileno(), entry.mode & 0o777 | 0o400)
        while chunk := source.read(CHUNK):
            written += len(chunk)
            if written > budget:
                raise _Refused(f"more than {MAX_BYTES // 2**20} MB")
            file.write(chunk)
    return written
