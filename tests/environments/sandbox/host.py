"""What a sandbox may have left on the host, or done to it."""

import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import wait_until

GROUPS = [Path("/sys/fs/cgroup/glm5-sandboxes"), *Path("/sys/fs/cgroup").glob("*/glm5-sandboxes")]
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass
class Host:
    """Taken before an attack. ``seconds`` is a number for ``sleep``: how its processes are known."""

    secret: Path  # a file of the host that all may read and the attacker knows the place of
    word: str = field(default_factory=lambda: uuid.uuid4().hex)
    seconds: str = field(default_factory=lambda: f"{10**8 + uuid.uuid4().int % 10**8}")

    def __post_init__(self) -> None:
        self.secret.write_text(self.word)
        self.secret.chmod(0o644)
        self._before = self._state()

    def _state(self) -> dict:
        return {
            "mounts": _mounts(),
            "devices": [os.stat(f"/dev/{name}").st_mode for name in DEVICES],
            "sysctl": Path("/proc/sys/kernel/core_pattern").read_text(),
            "groups": groups(os.getpid()),
            "usr": sorted(os.listdir("/usr")) + sorted(os.listdir("/usr/bin")),
            "secret": self.secret.read_text(),
        }

    def processes(self) -> list[str]:
        """The attacker's that still run, by the number they sleep for."""
        return processes_with(self.seconds)

    def assert_unharmed(self) -> None:
        wait_until(lambda: not self.processes(), "the end of all processes of the attack")
        assert self._state() == self._before


def groups(pid: int) -> list[str]:
    """Control groups of sandboxes that a process of ours made."""
    return sorted(str(group) for folder in GROUPS if folder.is_dir() for group in folder.glob(f"{pid}-*"))


def processes_with(word: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if word.encode() in line:
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def _mounts() -> list[str]:
    """Mounts that sandboxes of bubblewrap make. (Docker's, which an engine keeps, are the engine's.)"""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if " - overlay sandbox " in line or " - tmpfs sandbox " in line]
