"""One source of progress: a small file that a stage rewrites; the terminal bar and Prefect both show it.

Beside it stands for how long the stage was worked on: a stage that was killed goes on in another process.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

from pipeline.files import write_whole

FILE = "progress.json"
SECONDS = "seconds"
SECONDS_BETWEEN_WRITES = 0.5
SECONDS_BETWEEN_LINES = 10.0  # when standard error is not a terminal


class Progress:
    """Progress of one stage in ``<run folder>/progress.json``: phase, done, total, rate, seconds left."""

    def __init__(self, folder: Path, stage: str):
        self.path = folder / FILE
        self.stage = stage
        self._started = time.time()
        self._spent_before = _read_seconds(folder / SECONDS)
        self._last_write = self._last_line = 0.0
        self._tick: tuple[str, float, float] = ("", 0.0, 0.0)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        """For which the stage was worked on, by this process and by those that were interrupted before."""
        return self._spent_before + time.time() - self._started

    def interrupted(self) -> None:
        """Keep the seconds for the process that goes on; a process that is killed kept those of its last
        write of progress.
        """
        with contextlib.suppress(OSError):  # a full disk, which is what interrupted the stage
            write_whole(self.path.with_name(SECONDS), str(self.seconds))

    def finished(self) -> None:
        """Forget the seconds: they are in the record."""
        self.path.with_name(SECONDS).unlink(missing_ok=True)

    def update(
        self, phase: str, done: float, total: float | None = None, unit: str = "", note: str = ""
    ) -> None:
        """Report that ``done`` of ``total`` units of ``phase`` are finished. Cheap: for every item."""
        now = time.time()
        if phase != self._tick[0]:
            self._tick = (phase, now, done)
        finished = total is not None and done >= total
        if now - self._last_write < SECONDS_BETWEEN_WRITES and not finished:
            return
        self._last_write = now
        _, since, first = self._tick
        rate = (done - first) / (now - since) if now > since else 0.0
        left = max(total - done, 0) / rate if total is not None and rate > 0 else None
        state = {
            "stage": self.stage, "phase": phase, "done": done, "total": total, "unit": unit, "rate": rate,
            "seconds_left": left, "seconds": self.seconds, "note": note, "time": now,
        }  # fmt: skip
        write_whole(self.path, json.dumps(state))
        write_whole(self.path.with_name(SECONDS), str(state["seconds"]))
        self._show(state, now, finished)

    def _show(self, state: dict, now: float, finished: bool) -> None:
        if sys.stderr.isatty():
            end = "\n" if finished else ""
            print(f"\r\x1b[2K{describe(state)}", end=end, file=sys.stderr, flush=True)
        elif now - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(describe(state), file=sys.stderr, flush=True)


def _read_seconds(path: Path) -> float:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return 0.0


def describe(state: dict) -> str:
    """One line for a person: ``pretrain: train 320/732 step, 12.1 step/s, 34 s left, loss 3.1``."""
    total = f"/{state['total']:g}" if state["total"] is not None else ""
    parts = [f"{state['stage']}: {state['phase']} {state['done']:g}{total} {state['unit']}".rstrip()]
    if state["rate"]:
        parts.append(f"{state['rate']:.3g} {state['unit']}/s")
    if state["seconds_left"] is not None:
        parts.append(f"{state['seconds_left']:.0f} s left")
    if state["note"]:
        parts.append(state["note"])
    return ", ".join(parts)


def read_progress(folder: Path) -> dict | None:
    """The last state a stage wrote in its run folder, or None."""
    try:
        return json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
