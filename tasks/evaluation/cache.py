"""Results by (checkpoint, protocol): a score that was computed once is never computed again."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from evals.policy import Result, Score
from pipeline.artifacts import digest_of
from pipeline.files import write_whole

# The files that decide what a checkpoint answers; curves and metrics beside them do not.
DECIDING = ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja")


def checkpoint_digest(record: dict) -> str:
    """Identity of a checkpoint's content, from its artifact's record."""
    own = [name for name in record["files"] if "/" not in name]  # exports beside it have folders
    names = [name for name in own if name in DECIDING or name.endswith(".safetensors")]
    return digest_of({name: record["files"][name][1] for name in names})


class Cache:
    """One JSON file a result, below a folder that outlives the stage's identity."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._locks: dict[Path, threading.Lock] = {}  # checkpoints of equal weights may be scored at once

    def get(self, checkpoint: str, key: str, compute: Callable[[], Result]) -> tuple[Result, bool]:
        """The result, and whether it was there already."""
        path = self._path(checkpoint, key)
        with self._locks.setdefault(path, threading.Lock()):
            found = self._read(checkpoint, key)
            if found is not None:
                return found, True
            result = compute()
            write_whole(path, json.dumps(asdict(result)))
            # Through JSON as well, so that a fresh result and a stored one are the same to all readers.
            return self._read(checkpoint, key), False

    def _path(self, checkpoint: str, key: str) -> Path:
        return self.folder / f"{checkpoint[:24]}-{key[:24]}.json"

    def _read(self, checkpoint: str, key: str) -> Result | None:
        try:
            stored = json.loads(self._path(checkpoint, key).read_text())
            scores = [Score(**score) for score in stored["scores"]]
            return Result(scores, stored["samples"], stored["attempts"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
