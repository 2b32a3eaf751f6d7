"""Where a benchmark's results go, looked at before hours of work depend on it."""

import os
from pathlib import Path

from pipeline.errors import UserError


def require_place(file: Path) -> None:
    """Raise ``UserError`` where this file cannot be written."""
    if not file.parent.is_dir():
        raise UserError(f"--out: the folder {file.parent} is not there; make it, or choose another")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"--out: {file} cannot be written; choose another file")
