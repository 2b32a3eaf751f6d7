"""A child process of a training run: its output in a log, ended with its parent."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pipeline.parent import parents_death

SECONDS_TO_END = 10.0
TAIL_BYTES = 2000


class Child:
    """Start it with ``start``; ``poll`` tells whether it still runs."""

    def __init__(self, name: str, command: list[str], log: Path, environment: Mapping[str, str]):
        self.name, self.command, self.log = name, command, log
        self.starts = 0
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen | None = None
        self._began = 0  # where in the log this run's lines begin

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        with open(self.log, "ab", buffering=0) as file:
            self._began = file.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=self._environment, start_new_session=True, preexec_fn=parents_death(signal.SIGKILL),
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def printed(self) -> str:
        """What this run of it has printed so far."""
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(self._began)
            return file.read().decode(errors="replace")
        return ""

    def last_words(self) -> str:
        """Why it ended, for an error's sentence: its exit status and the end of its log."""
        status = self._process.returncode if self._process else None
        tail = self.printed().strip()[-TAIL_BYTES:]
        return f"{self.name} ended with status {status}; {self.log} ends with:\n{tail}"

    def kill(self) -> None:
        """End it and all that it started at once: it may hang."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it and all that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._end(number)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_END)
