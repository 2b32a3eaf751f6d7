"""A full disk, whoever notices it: safetensors, torch and tokenizers each raise a type of their own."""

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import UserError

# ENOSPC and EDQUOT in the words of Rust and C, inside exceptions that carry no number; the last is numpy's.
WORDS = ("No space left on device", "Disk quota exceeded", "Not enough free space to write")
NOTHING_FITS = 2**20  # bytes free at most: torch reports a short write without saying why


@contextlib.contextmanager
def full_disk_in_one_sentence(stage: str, *folders: Path) -> Iterator[None]:
    """Turn what is raised inside into ``UserError`` when the reason is a full disk below ``folders``."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place = _full_place(error, folders)
        if place is None:
            raise
        raise UserError(
            f"the disk is full while stage {stage} writes {place}: free some space and start it again; "
            "what was finished is kept"
        ) from error


def _full_place(error: BaseException | None, folders: tuple[Path, ...]) -> str | Path | None:
    """What could not be written; None when ``error`` has another reason."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error.filename or folders[0]
        if any(words in str(error) for words in WORDS):
            return folders[0]
        error = error.__cause__ or error.__context__
    return next((folder for folder in folders if _is_full(folder)), None)


def _is_full(folder: Path) -> bool:
    return folder.exists() and shutil.disk_usage(folder).free < NOTHING_FITS
