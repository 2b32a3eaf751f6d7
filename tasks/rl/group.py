"""The rollouts of one prompt, as a worker leaves them for the trainer: a file a group, in a folder.

The folder is the queue between the two processes, and its state is readable with ``ls``: ``00000012.npz`` is
a finished group. A file is whole or not there, so that either process may be killed at any time.
"""

import io
import json
import os
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.rl.trajectory import Segment, Trajectory, Turn

DTYPES = {"ids": np.int32, "sampled": np.bool_, "logprobs": np.float32, "versions": np.int32}


@dataclass
class Group:
    index: int  # in the order of admission; the same task and seeds in every run
    trajectories: list[Trajectory]

    @property
    def newest(self) -> int:
        """The version of the newest weights that sampled in it; -1 for none."""
        return max(
            (v for t in self.trajectories for segment in t.segments for v in segment.versions), default=-1
        )


class Spool:
    """Finished groups by index."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def sweep(self) -> None:
        """For the one that writes, as it starts: remove what it left half written."""
        for draft in self.folder.glob(".*"):
            draft.unlink()

    def put(self, group: Group) -> None:
        draft = self.folder / f".{group.index:08d}"
        with open(draft, "wb") as file:
            file.write(pack(group))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._path(group.index))

    def indices(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.npz") if path.stem.isdecimal())

    def get(self, index: int) -> Group:
        return unpack(self._path(index).read_bytes())

    def get_whole(self, index: int) -> Group | None:
        """None where the file cannot be read or holds another group: a disk may have lost what was in it."""
        try:
            group = self.get(index)
        except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile, zlib.error):
            return None
        return group if group.index == index else None

    def drop(self, index: int) -> None:
        self._path(index).unlink(missing_ok=True)

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:08d}.npz"


def pack(group: Group) -> bytes:
    """Tokens as arrays, one after another; the rest as JSON."""
    segments = [segment for trajectory in group.trajectories for segment in trajectory.segments]
    arrays = {
        name: np.concatenate([np.asarray(getattr(s, name), dtype) for s in segments] or [np.empty(0, dtype)])
        for name, dtype in DTYPES.items()
    }
    records = [_record(trajectory) for trajectory in group.trajectories]
    for number, segment in enumerate(segments):
        if segment.experts is not None:
            arrays[f"experts{number}"] = segment.experts
    arrays["rest"] = np.frombuffer(
        json.dumps({"index": group.index, "trajectories": records}).encode(), np.uint8
    )
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> Group:
    arrays = np.load(io.BytesIO(data), allow_pickle=False)
    rest = json.loads(arrays["rest"].tobytes())
    columns = {name: arrays[name] for name in DTYPES}
    trajectories, start, number = [], 0, 0
    for record in rest["trajectories"]:
        segments = []
        for length, turns in zip(record.pop("lengths"), record.pop("turns"), strict=True):
            values = {name: column[start : start + length].tolist() for name, column in columns.items()}
            experts = arrays[f"experts{number}"] if f"experts{number}" in arrays else None
            segments.append(Segment(**values, experts=experts, turns=[Turn(**turn) for turn in turns]))
            start, number = start + length, number + 1
        trajectories.append(Trajectory(segments=segments, **record))
    return Group(rest["index"], trajectories)


def _record(trajectory: Trajectory) -> dict[str, Any]:
    lengths = [len(segment) for segment in trajectory.segments]
    without = Trajectory(**{**trajectory.__dict__, "segments": []})
    record = asdict(without)
    del record["segments"]
    turns = [[asdict(turn) for turn in segment.turns] for segment in trajectory.segments]
    return {**record, "lengths": lengths, "turns": turns}
