"""Artifact folders: read, verify and atomically publish.

``artifacts/<recipe>/<stage>/`` holds a stage's payload and, written last, ``record.json``: what made it and
the size and SHA-256 of every payload file. A folder without a record that verifies is not finished.
"""

import contextlib
import hashlib
import json
import os
import shutil
from numbers import Real
from pathlib import Path

from pipeline.errors import UserError

RECORD = "record.json"
KINDS = {
    "files": dict, "sections": dict, "inputs": dict, "code": dict, "metrics": dict, "started": Real,
    "ended": Real, "seconds": Real,
}  # fmt: skip


def root() -> Path:
    """Where ``artifacts/`` and ``runs/`` live: ``GLM5_ROOT``, else the current folder."""
    return Path(os.environ.get("GLM5_ROOT", "."))


def artifact_dir(recipe: str, stage: str) -> Path:
    return root() / "artifacts" / recipe / stage


def run_dir(recipe: str, stage: str) -> Path:
    """Scratch that survives a rerun: training checkpoints, ``metrics.jsonl``, ``progress.json``, logs."""
    return root() / "runs" / recipe / stage


def read_record(folder: Path) -> dict | None:
    """The record of an artifact folder, or None when there is none or it is unreadable or incomplete."""
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return record if _is_whole(record) else None


def _is_whole(record: object) -> bool:
    if not isinstance(record, dict) or not record.keys() >= {"identity", "files", "content"}:
        return False
    if not all(isinstance(record[key], kind) for key, kind in KINDS.items() if key in record):
        return False
    return all(isinstance(entry, list) and len(entry) == 2 for entry in record["files"].values())


def ended(record: dict) -> float:
    """Unix time at which the stage ended; records of before this was kept are of one process each."""
    return record.get("ended", record["started"] + record["seconds"])


def digest_of(value: object) -> str:
    """SHA-256 of a JSON value with sorted keys: the form every identity takes."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()  # file names may be any bytes


def hash_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_code(paths: tuple[str, ...]) -> dict[str, str]:
    """SHA-256 of each source file below the given files and folders, by path."""
    hashes = {}
    for path in map(Path, paths):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                hashes[file.as_posix()] = hash_file(file)
    return hashes


def verify(folder: Path) -> dict:
    """The record of ``folder`` after checking each payload file. Raises ``UserError`` on what is wrong."""
    record = read_record(folder)
    if record is None:
        raise UserError(f"{folder} is not finished (no readable {RECORD}): run stage {folder.name} first")
    for name, (size, sha256) in record["files"].items():
        file = folder / name
        if not file.exists():
            raise UserError(f"{file} is missing: run stage {folder.name} again with --force")
        if file.stat().st_size != size or hash_file(file) != sha256:
            raise UserError(
                f"{file} was changed or damaged after it was made: run stage {folder.name} again with --force"
            )
    return record


def publish(draft: Path, final: Path, record: dict) -> dict:
    """Turn the folder ``draft`` into the artifact ``final``: readers see the old one or the new, no mixture.

    Adds ``files`` and ``content`` (a digest of them: the identity that later stages record) to ``record``.
    """
    files = {}
    for file in sorted(path for path in draft.rglob("*") if path.is_file()):
        files[file.relative_to(draft).as_posix()] = [file.stat().st_size, hash_file(file)]
    if not files:
        raise RuntimeError(f"stage {final.name} wrote nothing")
    record = {**record, "files": files, "content": digest_of(files)}
    (draft / RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    for path in draft.rglob("*"):
        _fsync(path)
    replaced = final.with_name(f".{final.name}.replaced")
    _remove(replaced)
    if final.exists():
        final.rename(replaced)
    draft.rename(final)
    _fsync(final.parent)
    _remove(replaced)
    return record


def recover(final: Path) -> None:
    """Undo a publication that was killed between its renames, and drop drafts that were never published."""
    replaced = final.with_name(f".{final.name}.replaced")
    if replaced.exists() and not final.exists():
        replaced.rename(final)
    for draft in final.parent.glob(f".{final.name}.draft*"):
        shutil.rmtree(draft, ignore_errors=True)


def require_free_space(folder: Path, needed_bytes: int) -> None:
    """Raise ``UserError`` when the disk of ``folder`` has less than ``needed_bytes`` free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise UserError(
            f"the disk of {folder} has {free / 2**20:.0f} MiB free and {needed_bytes / 2**20:.0f} MiB "
            "are needed: free some space"
        )


def _remove(folder: Path) -> None:
    """A folder, or a link to one, which someone may have made for lack of room: what it leads to stays."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _fsync(path: Path) -> None:
    refusal = OSError if path.is_dir() else ()  # some file systems refuse to sync a folder
    with contextlib.suppress(refusal):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
