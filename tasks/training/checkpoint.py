"""Training checkpoints: atomic step folders that a killed run goes on from, bit for bit on CPU.

``runs/<recipe>/<stage>/steps/<step>/`` holds ``state.pt`` (model, optimizer and counters) and, written last,
``done.json`` with its size and SHA-256. A folder without a marker that verifies is not a checkpoint.
"""

import json
import os
import shutil
from pathlib import Path

import torch

from pipeline.artifacts import hash_file, require_free_space

FOLDER = "steps"
STATE = "state.pt"
MARKER = "done.json"


def save(scratch: Path, step: int, state: dict, keep_last: int) -> None:
    """Write the state after ``step`` optimizer steps and drop all but the newest ``keep_last`` checkpoints.

    Those of later steps go with them: training went on from before them, as they are damaged.
    Raises ``UserError`` before writing when the disk has too little room.
    """
    folder = scratch / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    require_free_space(folder, int(1.1 * _bytes_of(state)) + 2**20)
    draft = folder / f".{step}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    with open(draft / STATE, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    marker = {"step": step, "size": (draft / STATE).stat().st_size, "sha256": hash_file(draft / STATE)}
    (draft / MARKER).write_text(json.dumps(marker))
    final = folder / f"{step:08d}"
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    there = _finished(folder)
    kept = [path for path in there if path.name <= final.name][-keep_last:]
    for other in set(there) - set(kept):
        shutil.rmtree(other, ignore_errors=True)


def load_latest(scratch: Path, device: torch.device) -> dict | None:
    """The newest checkpoint that verifies, or None. A damaged one is skipped for the one before it."""
    for folder in reversed(_finished(scratch / FOLDER)):
        marker = _read_marker(folder)
        if marker and hash_file(folder / STATE) == marker["sha256"]:
            return torch.load(folder / STATE, map_location=device, weights_only=True)
        print(f"{folder} is damaged: going back to the checkpoint before it", flush=True)
    return None


def _finished(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if (path / MARKER).exists())


def _read_marker(folder: Path) -> dict | None:
    try:
        marker = json.loads((folder / MARKER).read_text())
        return marker if (folder / STATE).stat().st_size == marker["size"] and marker["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _bytes_of(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_bytes_of(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_bytes_of(item) for item in value)
    return 64
