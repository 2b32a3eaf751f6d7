"""The processes in which Math-Verify compares answers, started when the first one is needed.

``await equal(gold, answer)`` may be called from any event loop and any thread. A few processes serve all
episodes; each ends when this process closes its end of the pipe, however this process ends.
"""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROCESSES = max(1, min(4, (os.cpu_count() or 1) // 2))
PATIENCE = 300.0  # seconds that pass; the work itself is bounded by the worker
ROOT = Path(__file__).resolve().parents[2]


class CheckerError(Exception):
    """The checker itself failed: no statement about the answer."""


class _Worker:
    def __init__(self):
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "environments.mathematics.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                cwd=ROOT, env={"PATH": os.environ.get("PATH", "")}, text=True,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CheckerError(f"cannot start the checker of mathematics: {error}") from error
        if self._read() != "ready\n":
            self.end()
            raise CheckerError("the checker of mathematics does not start: is math-verify installed?")

    def _read(self) -> str:
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        return self._process.stdout.readline() if ready else ""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def equal(self, gold: str, answer: str) -> bool | None:
        """None when the comparison took too long; this worker has ended then."""
        try:
            self._process.stdin.write(json.dumps([gold, answer]) + "\n")
            self._process.stdin.flush()
            line = self._read()
        except OSError:
            line = ""
        if line:
            same = json.loads(line)
            if same is None:
                raise CheckerError(f"the right answer cannot be read: {gold}")
            return same
        self.end()
        if self._process.returncode == -signal.SIGPROF:
            return None
        raise CheckerError(f"the checker of mathematics ended with {self._process.returncode}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Checker:
    def __init__(self):
        self._workers = threading.local()
        self._threads = ThreadPoolExecutor(PROCESSES, thread_name_prefix="mathematics")

    async def equal(self, gold: str, answer: str) -> bool | None:
        """Whether two LaTeX answers are equivalent; None where that takes too long.

        Raises ``CheckerError``.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._equal, gold, answer)

    def _equal(self, gold: str, answer: str) -> bool | None:
        worker = getattr(self._workers, "worker", None)
        if worker is None or not worker.alive:
            self._workers.worker = worker = _Worker()
        return worker.equal(gold, answer)


_checkers: dict[int, Checker] = {}


def checker() -> Checker:
    """The checker of this process; a forked child has one of its own."""
    if os.getpid() not in _checkers:
        _checkers[os.getpid()] = Checker()
    return _checkers[os.getpid()]
