"""A local folder (or one file) of text, Markdown, source code, JSON Lines and Parquet.

What is broken as a whole, such as an empty folder or a Parquet file cut short, stops the stage; a single bad
file or record among good ones is skipped, counted and named.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from data_pipelines.documents import Document, read_batches
from data_pipelines.sources.files import (
    LANGUAGES,
    LONGEST_DOCUMENT,
    Notes,
    SourceFile,
    Unusable,
    decode,
    read_text,
)
from pipeline.errors import UserError
from pipeline.recipe.data import Source

RECORDS = {".jsonl", ".ndjson", ".parquet"}
TEXT_KEYS = ("text", "content")
TOO_LONG = f"it is longer than {LONGEST_DOCUMENT // 2**20} MB"


def files(source: Source, notes: Notes, downloads: Path) -> Iterator[SourceFile]:
    root = Path(source.path).expanduser()
    if not root.exists():
        raise UserError(f"source {source.name}: there is no {root}: correct its path in the recipe")
    found = 0
    for path in _walk(root):
        name = path.relative_to(root).as_posix() if root.is_dir() else path.name
        suffix = path.suffix.lower()
        if not _is_unicode(name):
            notes.skip(ascii(name), "its name is not UTF-8")
            continue
        if suffix not in LANGUAGES and suffix not in RECORDS:
            notes.skip(name, f"files of kind {suffix} are not read")
            continue
        found += 1
        yield SourceFile(
            name, _package(source, name), path.stat().st_size, partial(_read, path, name, source, notes)
        )
    if not found:
        raise UserError(
            f"source {source.name}: {root} holds no text, Markdown, source code, JSON Lines or Parquet file: "
            "put documents there or take the source out of the recipe"
        )


def _walk(root: Path) -> Iterator[Path]:
    """Files below ``root`` in a stable order, without hidden ones; links are not followed."""
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _is_unicode(name: str) -> bool:
    """False for a file name whose bytes are no UTF-8: Python keeps them as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _package(source: Source, name: str) -> str:
    return f"{source.name}/{name.split('/')[0]}" if "/" in name else source.name


def _read(path: Path, name: str, source: Source, notes: Notes) -> Iterator[Document]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet(path, name, source, notes)
    elif suffix in RECORDS:
        yield from _json_lines(path, name, source, notes)
    else:
        language, kind = LANGUAGES[suffix]
        licence = source.licence or "unknown"
        yield Document(read_text(path), source.name, name, _package(source, name), licence, language, kind)


def _json_lines(path: Path, name: str, source: Source, notes: Notes) -> Iterator[Document]:
    good, first_reason = False, ""
    with _open(path) as file:
        for number, line in enumerate(_bounded_lines(file), 1):
            where = f"{name} line {number}"
            try:
                if line is None:
                    raise Unusable(TOO_LONG)
                if not line.strip():
                    continue
                yield _document(_parse(line), where, name, source)
                good = True
            except Unusable as reason:
                first_reason = first_reason or f"line {number}: {reason}"
                notes.skip(where, str(reason))
    if not good:
        raise UserError(
            f"source {source.name}: {path} holds no usable line ({first_reason or 'it is empty'}); "
            "a line is a JSON object with the key 'text'"
        )


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise Unusable(f"it cannot be read ({error.strerror})") from None


def _bounded_lines(file) -> Iterator[bytes | None]:
    """Lines of a binary file; None for one longer than a document may be, which is never held in memory."""
    while line := file.readline(LONGEST_DOCUMENT + 1):
        if len(line) <= LONGEST_DOCUMENT or line.endswith(b"\n"):
            yield line
            continue
        while (rest := file.readline(2**20)) and not rest.endswith(b"\n"):
            pass
        yield None


def _parse(line: bytes) -> dict:
    try:
        record = json.loads(decode(line))
    except (ValueError, RecursionError):
        raise Unusable("it is not JSON") from None
    if not isinstance(record, dict):
        raise Unusable("it is not a JSON object")
    return record


def _parquet(path: Path, name: str, source: Source, notes: Notes) -> Iterator[Document]:
    row = 0
    for batch in read_batches(path):
        known = batch.schema.names
        if not set(TEXT_KEYS) & set(known):
            raise UserError(
                f"source {source.name}: {path} has no column 'text' or 'content' (it has {', '.join(known)})"
            )
        for record in batch.to_pylist():
            row += 1
            try:
                yield _document(record, f"{name} row {row}", name, source)
            except Unusable as reason:
                notes.skip(f"{name} row {row}", str(reason))


def _document(record: dict, where: str, name: str, source: Source) -> Document:
    text = next((record[key] for key in TEXT_KEYS if isinstance(record.get(key), str)), None)
    if text is None:
        raise Unusable("it has no text under the key 'text' or 'content'")
    if len(text) > LONGEST_DOCUMENT:
        raise Unusable(TOO_LONG)
    path = str(record.get("path") or where)
    language, kind = LANGUAGES.get(Path(path).suffix.lower(), LANGUAGES[""])
    try:
        text = decode(text.encode())
    except UnicodeEncodeError:
        raise Unusable("it holds half of a surrogate pair") from None
    return Document(
        text, source.name, path,
        str(record.get("package") or record.get("repo_name") or _package(source, name)),
        str(record.get("licence") or record.get("license") or source.licence or "unknown"),
        str(record.get("language") or language), str(record.get("kind") or kind),
    )  # fmt: skip
