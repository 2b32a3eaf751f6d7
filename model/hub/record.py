"""The hashes that stand beside a checkpoint: stage artifacts have a ``record.json`` with all their files.

``pipeline/artifacts.py`` writes it: under ``files`` a size in bytes and a SHA-256 for each path in the
artifact. What lies in a folder of an artifact, as ``w8a8/`` does, stands in the record above it.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

RECORD = "record.json"


def check_recorded(folder: Path, names: Iterable[str]) -> None:
    """Compare files of a folder with the record beside them, or above them.

    Files that no record names are let through: an export that was copied elsewhere has none. Raises
    ``ValueError`` with one sentence for the first file that differs and for a record that cannot be read.
    """
    names, place = list(names), folder.resolve()
    for home, prefix in ((place, ""), (place.parent, f"{place.name}/")):
        recorded = _recorded(home / RECORD)
        for name in names:
            expected = recorded.get(prefix + name)
            if expected is not None and expected != _size_and_hash(place / name):
                raise ValueError(
                    f"{folder / name} was changed or damaged after it was written ({home / RECORD} has "
                    "another hash of it): copy it again, or quantise again with `glm5 run quantize --force`"
                )


def _recorded(path: Path) -> dict:
    """Sizes and hashes by path; nothing where there is no record, or another program's."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        raise ValueError(
            f"{path}, which has the hashes of the checkpoint's files, is damaged: copy it again, or quantise "
            "again with `glm5 run quantize --force`"
        ) from None
    files = found.get("files") if isinstance(found, dict) else None
    return files if isinstance(files, dict) else {}


def _size_and_hash(path: Path) -> list[int | str]:
    with open(path, "rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]
