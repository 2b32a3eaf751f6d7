"""Files that other processes read at any time: whole or not there."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it: a reader sees the old text or the new, never a part.

    For one writer a file. It is not forced to the disk: what must outlive the machine is synced.
    """
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
