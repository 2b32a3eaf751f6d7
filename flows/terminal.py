"""What a person sees while stages run: a line for each that ends and the live progress of those running."""

import shutil
import sys
import threading
import time
from typing import TextIO

from pipeline import artifacts
from pipeline.progress import describe, read_progress

SECONDS_BETWEEN_REPORTS = 15.0  # when the output is no terminal
METRICS_SHOWN = 3


class View:
    """Prints to a terminal (the bottom line is rewritten) or to a plain stream (a line now and then)."""

    def __init__(self, recipe: str, stream: TextIO = sys.stdout):
        self.recipe = recipe
        self._stream = stream
        self._live = stream.isatty()
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._reported = time.monotonic()

    def say(self, text: str) -> None:
        with self._lock:
            self._clear()
            print(text, file=self._stream, flush=True)

    def started(self, stage: str) -> None:
        self._running[stage] = time.time()

    def skipped(self, stage: str) -> None:
        self._running.pop(stage, None)
        self.say(f"  = {stage}: up to date")

    def finished(self, stage: str, record: dict) -> None:
        self._running.pop(stage, None)
        shown = ", ".join(
            f"{key} {value:.4g}" for key, value in list(record["metrics"].items())[:METRICS_SHOWN]
        )
        self.say(f"  + {stage}: done in {record['seconds']:.1f} s{'  ' + shown if shown else ''}")

    def failed(self, stage: str, sentence: str) -> None:
        self._running.pop(stage, None)
        self.say(f"  ! error: {sentence}")

    def tick(self) -> None:
        """Show where the running stages are. Cheap; call it often."""
        lines = [
            line for stage, since in list(self._running.items()) if (line := self._progress(stage, since))
        ]
        now = time.monotonic()
        with self._lock:
            if self._live:
                self._clear()
                width = shutil.get_terminal_size().columns
                print("  > " + " | ".join(lines)[: width - 5], end="", file=self._stream, flush=True)
            elif lines and now - self._reported > SECONDS_BETWEEN_REPORTS:
                self._reported = now
                for line in lines:
                    print(f"  > {line}", file=self._stream, flush=True)

    def _progress(self, stage: str, since: float) -> str:
        state = read_progress(artifacts.run_dir(self.recipe, stage))
        if state is None or state["time"] < since:
            return f"{stage}: starting"
        return describe(state)

    def _clear(self) -> None:
        if self._live:
            print("\r\x1b[2K", end="", file=self._stream)
