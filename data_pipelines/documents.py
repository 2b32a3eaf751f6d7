"""A document and the Parquet files that hold documents: how text travels between the data stages."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UserError

ROW_GROUP_CHARACTERS = 4 * 2**20  # what a reader holds in memory at once
FILE_CHARACTERS = 256 * 2**20
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Document:
    """One file, topic or record with where it came from."""

    text: str
    source: str  # name of the recipe's source
    path: str  # inside the source; names the document to a person
    package: str  # groups the files of one repository or package
    licence: str  # SPDX expression where the origin states one, else "unknown"
    language: str  # "python", "c", ... for code; "en", "markdown", "rst" for prose
    kind: str  # "code" or "prose"
    id: str = ""  # SHA-256 of the text

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", hashlib.sha256(self.text.encode()).hexdigest())


COLUMNS = tuple(sorted(field.name for field in fields(Document)))
SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])


class DocumentWriter:
    """Writes ``folder/00000.parquet``, ... in the order given, a few megabytes in memory at a time."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.documents = self.characters = 0
        self._rows: list[Document] = []
        self._pending = self._in_file = self._files = 0
        self._file: pq.ParquetWriter | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "DocumentWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, document: Document) -> None:
        self._rows.append(document)
        self._pending += len(document.text)
        self.documents += 1
        self.characters += len(document.text)
        if self._pending >= ROW_GROUP_CHARACTERS:
            self._flush()

    def close(self) -> None:
        if self._rows or not self._files:  # an empty set of documents is a file without rows
            self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _flush(self) -> None:
        if self._file is None:
            path = self.folder / f"{self._files:05d}.parquet"
            self._file = _open(path)
            self._files += 1
        self._file.write_table(_table(self._rows))
        self._in_file += self._pending
        self._rows, self._pending = [], 0
        if self._in_file >= FILE_CHARACTERS:
            self._file.close()
            self._file, self._in_file = None, 0


def write_file(path: Path, documents: list[Document]) -> None:
    """All documents in one file, for a set that fits into memory."""
    with _open(path) as file:
        file.write_table(_table(documents), row_group_size=ROWS_AT_ONCE)


def _open(path: Path) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, SCHEMA, compression="zstd", write_page_checksum=True)


def _table(rows: list[Document]) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    return pa.table(columns, schema=SCHEMA)


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of a Parquet file or of a folder of them, in order; ``UserError`` names a bad file."""
    for file in parquet_files(path):
        for batch in read_batches(file, list(COLUMNS)):
            for row in batch.to_pylist():
                yield Document(**row)


def rank(*parts: object) -> str:
    """A reproducible random key: sort by it to shuffle."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def parquet_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def read_batches(file: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Some rows at a time, so that a file of any size fits into memory; all columns when none are named."""
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            missing = [name for name in columns or () if name not in parquet.schema_arrow.names]
            if missing:
                there = ", ".join(parquet.schema_arrow.names)
                raise UserError(f"{file} has no column {', '.join(missing)} (it has {there})")
            for batch in parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
                batch.validate(full=True)  # a damaged page may decompress to bytes that are no text
                yield batch
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{file} is not a readable Parquet file, perhaps cut short ({reason}): replace or remove it"
        ) from None


def python_texts(folder: Path) -> Iterator[str]:
    """Texts of the Python documents of a folder, for look-ups in real code."""
    for file in parquet_files(folder):
        for batch in read_batches(file, ["text", "language"]):
            for row in batch.to_pylist():
                if row["language"] == "python":
                    yield row["text"]
