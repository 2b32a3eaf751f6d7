"""Control groups, version 1 or 2: what all processes of a sandbox may use together, and who they are.

Each sandbox has a group ``glm5-sandboxes/<pid>-<start>-<n>`` in every hierarchy, named after the process that
made it, so that what a killed process left is found and removed. Each command has a group below, to be killed
with all that it started, however that was detached."""

import contextlib
import itertools
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from environments.sandbox.interface import Limits, SandboxError

FOLDER = "glm5-sandboxes"
NEEDED = ("memory", "pids", "cpu")
PERIOD = 100_000  # microseconds over which the share of the cores is taken
OWN_PROCESSES = 8  # ours: holder, first process and its parent, and a command's way in
SECONDS = 10.0  # for a group to become empty once its processes are killed
_numbers = itertools.count()


@dataclass(frozen=True)
class Hierarchies:
    """``folders``: a controller's ``glm5-sandboxes`` (version 2 has one for all)."""

    version: int
    folders: dict[str, Path]

    def make(self, limits: Limits) -> "Group":
        """A group for one sandbox. What it writes counts as memory, so both are allowed together."""
        name = f"{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"
        group = Group(self, {controller: folder / name for controller, folder in self.folders.items()})
        memory = (limits.memory_mb + limits.disk_mb) * 2**20
        quota = max(1000, round(limits.cpus * PERIOD))
        try:
            for folder in group.all():
                folder.mkdir()
            pids = group.folders["pids"]
            (pids / "pids.max").write_text(str(limits.processes + OWN_PROCESSES))
            if self.version == 2:
                (pids / "memory.max").write_text(str(memory))
                (pids / "cpu.max").write_text(f"{quota} {PERIOD}")
                swap = pids / "memory.swap.max", 0
            else:
                (group.folders["memory"] / "memory.limit_in_bytes").write_text(str(memory))
                (group.folders["cpu"] / "cpu.cfs_period_us").write_text(str(PERIOD))
                (group.folders["cpu"] / "cpu.cfs_quota_us").write_text(str(quota))
                swap = group.folders["memory"] / "memory.memsw.limit_in_bytes", memory
            if swap[0].exists():  # only where the kernel counts swap
                swap[0].write_text(str(swap[1]))
        except OSError as error:
            group.remove()
            raise SandboxError(f"the limits of a sandbox cannot be set: {error}") from error
        return group

    def sweep(self) -> None:
        """Remove the groups of processes that are no more, and kill what is still in them."""
        for folder in set(self.folders.values()):
            for left in folder.iterdir():
                pid, start = (*left.name.split("-"), "", "")[:2]
                if left.is_dir() and pid.isdigit() and _started(int(pid)) != start:
                    _remove(left)


@dataclass(frozen=True)
class Group:
    hierarchies: Hierarchies
    folders: dict[str, Path]

    def all(self) -> set[Path]:
        return set(self.folders.values())

    def entrances(self) -> list[str]:
        """Files to write a process's number to."""
        return [str(folder / "cgroup.procs") for folder in self.all()]

    def command(self) -> Path:
        """A group for a command, below that of its sandbox."""
        folder = self.folders["pids"] / f"command-{next(_numbers)}"
        folder.mkdir()
        return folder

    def entrances_of(self, command: Path) -> list[str]:
        others = self.all() - {self.folders["pids"]}
        return [str(folder / "cgroup.procs") for folder in (command, *others)]

    def remove(self) -> None:
        for folder in self.all():
            _remove(folder)


def find() -> Hierarchies | None:
    """The hierarchies of this machine that we may write to; None where limits must be set otherwise."""
    for version, folders in ((2, _version_2()), (1, _version_1())):
        if folders and all(_usable(folder, version) for folder in folders.values()):
            hierarchies = Hierarchies(version, folders)
            hierarchies.sweep()
            return hierarchies
    return None


def kill(folder: Path, spare: int | None = None) -> None:
    """Kill all processes of a group but one, which takes its children off. Blocking, until none is left.

    That nothing forks meanwhile is made sure of by freezing (version 2) or by a limit of no processes.
    """
    deadline = time.monotonic() + SECONDS
    with _halted(folder):
        while time.monotonic() < deadline and (pids := set(_processes(folder)) - {spare}):
            # All are stopped first: a shell whose child is killed before it would still say so.
            for each in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, each)
            time.sleep(0.002)


@contextlib.contextmanager
def _halted(folder: Path):
    """No process of the group forks. Killed ones end also when they are frozen."""
    freeze = folder / "cgroup.freeze"
    if freeze.exists():
        with contextlib.suppress(OSError):
            freeze.write_text("1")
        yield
        with contextlib.suppress(OSError):
            freeze.write_text("0")
    else:
        with contextlib.suppress(OSError):
            (folder / "pids.max").write_text("0")
        yield


def _version_1() -> dict[str, Path] | None:
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup":
            for controller in set(NEEDED) & set(fields[-1].split(",")):
                found[controller] = Path(fields[4]) / FOLDER
    return found if set(found) == set(NEEDED) else None


def _version_2() -> dict[str, Path] | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup2":
            top = Path(fields[4])
            if set(NEEDED) <= set((top / "cgroup.controllers").read_text().split()):
                return dict.fromkeys(NEEDED, top / FOLDER)
    return None


def _usable(folder: Path, version: int) -> bool:
    """Whether groups with all controllers can be made in it."""
    try:
        if version == 2:
            _enable(folder.parent)
        folder.mkdir(exist_ok=True)
        if version == 2:
            _enable(folder)
        return os.access(folder, os.W_OK)
    except OSError:
        return False


def _enable(folder: Path) -> None:
    enabled = (folder / "cgroup.subtree_control").read_text().split()
    missing = [controller for controller in NEEDED if controller not in enabled]
    if missing:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in missing))


def _remove(folder: Path) -> None:
    """Kill what is in a group, then remove it. A process that has just ended keeps it busy for a moment."""
    with contextlib.suppress(FileNotFoundError):
        for below in folder.iterdir():
            if below.is_dir():
                _remove(below)
    deadline = time.monotonic() + SECONDS
    while folder.is_dir():
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"the control group {folder} cannot be removed: {error.strerror}"
                ) from None
            kill(folder)
            time.sleep(0.001)


def _processes(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _started(pid: int) -> str | None:
    """When a process started, in ticks since boot; None where there is none of that number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return re.sub(r".*\) ", "", stat, flags=re.DOTALL).split()[19]
