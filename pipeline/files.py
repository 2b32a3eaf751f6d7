"""Files that other processes read at any time: whole or not there. A lock among them. YAML, read fast."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it: a reader sees the old text or the new, never a part.

    For one writer a file. It is not forced to the disk: what must outlive the machine is synced.
    """
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock that the file ``path`` stands for, and hold it; it ends with its holder."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def parse_yaml(text: str) -> Any:
    """``yaml.safe_load`` by libyaml, where PyYAML was built with it: a tenth of the time."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
