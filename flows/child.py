"""One child process in its own group: its lines go to a log and a listener, the whole group ends on request.

DVC and the Prefect worker both leave their children running when they are killed, so a child asks the kernel
for SIGTERM when its parent dies, and ending one means ending its group.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from pipeline.parent import parents_death
from pipeline.priority import give_way

SECONDS_TO_SAVE = 60.0  # between SIGTERM, on which a training stage saves a checkpoint, and SIGKILL
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_TICKS = 0.5
SECONDS_TO_READ = 60.0  # what a child printed before it ended
LINES_KEPT = 200


@dataclass(frozen=True)
class Exit:
    """How a child ended: exit status (negative: the signal), last lines, and what made it end early."""

    status: int
    lines: list[str]
    ended_by: Literal["stop", "limit"] | None


def run_child(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    on_line: Callable[[str], None],
    on_tick: Callable[[], None],
    stop: threading.Event,
    niceness: int = 0,
    limit_seconds: float | None = None,
) -> Exit:
    """Run ``command`` to its end; ``on_line`` gets each line it prints, ``on_tick`` is called twice a second.

    When ``stop`` is set, the time limit is over or an exception passes through here, the child's whole group
    is ended first.
    """
    with _open_log(log) as file:
        _log(file, f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}\n")
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", start_new_session=True,
            preexec_fn=_before_exec(niceness),
        )  # fmt: skip
        kept: list[str] = []
        reader = threading.Thread(target=_read, args=(child, file, kept, on_line), daemon=True)
        reader.start()
        ended_by = None
        started, ticked = time.monotonic(), 0.0
        try:
            while child.poll() is None:
                now = time.monotonic()
                if stop.wait(SECONDS_BETWEEN_LOOKS):
                    ended_by = "stop"
                    end_group(child.pid)
                elif limit_seconds is not None and now - started > limit_seconds:
                    ended_by = "limit"
                    end_group(child.pid)
                elif now - ticked > SECONDS_BETWEEN_TICKS:
                    ticked = now
                    on_tick()
        except BaseException:
            end_group(child.pid)
            raise
        status = child.wait()
        reader.join(SECONDS_TO_READ)  # a grandchild that outlives the child may hold the pipe open
    return Exit(status, kept, ended_by)


def end_group(group: int, seconds: float = SECONDS_TO_SAVE) -> None:
    """SIGTERM to a process group, and SIGKILL to what is left of it after ``seconds``."""
    _signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and group_alive(group):
        time.sleep(0.1)
    _signal_group(group, signal.SIGKILL)


def group_alive(group: int) -> bool:
    """Whether a process of the group still runs; one that ended and was not yet collected does not count."""
    proc = Path("/proc")
    if not proc.is_dir():
        return _signal_group(group, 0)
    for folder in proc.iterdir():
        if folder.name.isdigit():
            fields = _stat_fields(folder)
            if fields and fields[2] == str(group) and fields[0] not in "ZX":
                return True
    return False


def _stat_fields(folder: Path) -> list[str]:
    """State, parent, group, ... of a process; empty when it is gone."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _open_log(path: Path) -> BinaryIO:
    """The log to append to; on a disk that is full the lines are shown and kept nowhere."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab", buffering=0)
    except OSError:
        return open(os.devnull, "ab", buffering=0)


def _log(file: BinaryIO, text: str) -> None:
    """A line that cannot be written must not stop the reading: the child would wait for a full pipe."""
    with contextlib.suppress(OSError):
        file.write(text.encode())


def _read(child: subprocess.Popen, file: BinaryIO, kept: list[str], on_line: Callable[[str], None]) -> None:
    for line in child.stdout:
        _log(file, line)
        line = line.rstrip()
        kept.append(line)
        del kept[:-LINES_KEPT]
        if line:
            on_line(line)


def _before_exec(niceness: int) -> Callable[[], None]:
    end_with_parent = parents_death(signal.SIGTERM)

    def prepare() -> None:
        end_with_parent()
        if niceness:
            give_way(niceness)

    return prepare
