"""A real server in a process of its own, on a free port of this machine, with two small checkpoints."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from model.chat.tokenizer import Tokenizer
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT / "tests/model/chat"))

from reciting_model import make_checkpoint  # noqa: E402
from small_tokenizer import train_tokenizer  # noqa: E402

PORT_IS_TAKEN = "address already in use"
STARTS = 60  # a second apart, where the port is taken


@dataclass
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen
    lines: list[str] = field(default_factory=list)

    def metric(self, name: str) -> float:
        """A figure of /metrics; 0 where it was not counted yet."""
        page = httpx.get(f"{self.url}/metrics", timeout=PATIENCE).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0


Start = Callable[..., Served]


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Checkpoint folders by name; "speaker" is loaded first."""
    folders = {}
    for name in ("caller", "speaker"):
        folders[name] = tmp_path_factory.mktemp(name)
        train_tokenizer(folders[name], tags_are_special=False)
        make_checkpoint(folders[name], name)
    return folders


@pytest.fixture(scope="session")
def tokenizer(folders) -> Tokenizer:
    return Tokenizer.load(folders["speaker"])


@pytest.fixture(scope="session")
def start_server(folders) -> Iterator[Start]:
    """``start_server("--port", "0", ...)``: a server that is ended with the tests.

    It serves the checkpoints of ``folders`` or those given. A port that is taken is asked for again: a server
    that was killed, or a connection of another program, may hold it for a moment.
    """
    running: list[subprocess.Popen] = []
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    def start_once(names: list[str], options: tuple[str, ...], variables: dict[str, str]) -> Served | None:
        process = subprocess.Popen(
            [sys.executable, "-m", "model.inference.server", *names, "--port", "0", *options],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables},
        )  # fmt: skip
        running.append(process)
        return _wait_for(process)

    def start(*options: str, checkpoints: dict[str, Path] = folders, **variables: str) -> Served:
        names = [f"{name}={folder}" for name, folder in checkpoints.items()]
        for _ in range(STARTS):
            if (served := start_once(names, options, variables)) is not None:
                return served
            time.sleep(1)
        raise AssertionError(f"the port of {options} stayed taken")

    yield start
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="session")
def served(start_server) -> Served:
    return start_server()


def _wait_for(process: subprocess.Popen) -> Served | None:
    """The server once it is there; None where its port is taken."""
    lines: list[str] = []
    there = threading.Event()

    def read() -> None:
        for line in process.stdout:
            lines.append(line.rstrip())
            if "chat page:" in line:
                there.set()
        there.set()

    threading.Thread(target=read, daemon=True).start()
    assert there.wait(PATIENCE), "the server did not start in time"
    found = re.search(r"chat page: (http://\S+?)/ ", "\n".join(lines))
    if not found and any(PORT_IS_TAKEN in line for line in lines):
        return None
    assert found, f"the server ended: {lines}"
    return Served(found[1], process, lines)
