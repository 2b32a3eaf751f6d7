"""A vLLM server as a child process, for rollouts, tests and benchmarks: ``with serving(folder) as url``."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-vllm/bin/python"
SECONDS_TO_START, SECONDS_TO_END = 600, 60


@contextmanager
def serving(
    folder: str | Path, *options: str, python: Path = PYTHON, name: str = "glm5", **variables: str
) -> Iterator[str]:
    """The URL of a server on a folder, on a free port of this machine, ended with the context.

    ``options`` are those of ``model.inference.vllm`` and of vLLM itself, ``variables`` of the environment.
    Raises ``RuntimeError`` with the end of what the server said where it does not start. An exception of the
    body gets the first error of the server's log as a note: its answers do not say why its engine died.
    """
    port = _free_port()
    command = [
        sys.executable, "-m", "model.inference.vllm", f"{name}={folder}", "--port", str(port),
        "--python", str(python), *options,
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | variables,
        )  # fmt: skip
        try:
            _wait_for(f"http://127.0.0.1:{port}", process, log)
            try:
                yield f"http://127.0.0.1:{port}"
            except Exception as error:
                if cause := _cause(_read(log)):
                    error.add_note(cause)
                raise
        finally:
            _end(process)


def _wait_for(url: str, process: subprocess.Popen, log: IO[str]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=10, trust_env=False).is_success:
                return
        time.sleep(0.5)
    said = _read(log)
    cause = f" ({found})" if (found := _cause(said)) else ""
    raise RuntimeError(f"vLLM's server did not start{cause}; the end of what it said:\n{said[-3000:]}")


def _read(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


def _cause(said: str) -> str:
    """The first error of a log: a worker's own stands far above what the server makes of it."""
    found = re.search(r"\bERROR\b.*?\b([A-Z]\w*(?:Error|Exception): .+)", said)
    return found[1] if found else ""


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):  # what it started and left
        os.killpg(process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
