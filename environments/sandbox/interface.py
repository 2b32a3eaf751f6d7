"""What every sandbox is: an image is built once, a sandbox is started from it, commands run inside.

    backend = open_backend()                        # environments.sandbox.choose
    image = await backend.build(folder)             # a folder with a Dockerfile; cached by content
    sandbox = await backend.start(image, Limits())
    result = await sandbox.run("make test", seconds=60)
    await sandbox.end_processes()                   # nothing of the agent runs any more, its files stay
    await sandbox.close()

Inside there is no network, nothing of the host can be written, and only what the image holds can be read.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self


class SandboxError(Exception):
    """The sandbox itself failed: no statement about what ran in it. Rewards become None."""


class ImageError(Exception):
    """An image cannot be built: an instruction that is not understood, or a command of it that failed."""


@dataclass(frozen=True)
class Limits:
    """What all processes of a sandbox may use together, over its whole life."""

    memory_mb: int = 1024
    cpus: float = 1.0
    processes: int = 128
    disk_mb: int = 512  # written files, /tmp included
    output_bytes: int = 64_000  # of one command; what is more is dropped and counted


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    returncode: int  # 128 + n when signal n ended it
    output: str  # standard output and error as they came, the middle cut where it was too long
    timed_out: bool = False
    dropped_bytes: int = 0


@dataclass(frozen=True)
class Image:
    """A built image: its name in the backend, and what its Dockerfile says of running it."""

    name: str
    workdir: str
    environment: Mapping[str, str]
    user: str = "root"


class Sandbox(ABC):
    """One running sandbox. Close it, or use it as an async context manager."""

    @abstractmethod
    async def run(
        self,
        command: str,
        *,
        seconds: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Result:
        """Run ``bash -c command`` without standard input; ``cwd`` defaults to the image's workdir.

        What it leaves in the background goes on until ``end_processes`` or ``close``. A command over its time
        is killed with all that it started. Raises ``SandboxError``.
        """

    @abstractmethod
    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file as root; folders above it are made. No link inside leads out of the sandbox."""

    @abstractmethod
    async def read(self, path: str, limit: int = 1_000_000) -> bytes:
        """The first ``limit`` bytes of a regular file. Raises ``FileNotFoundError`` where there is none."""

    @abstractmethod
    async def upload(self, folder: Path, target: str) -> None:
        """Copy a folder of the host to ``target``; what lay there before is removed first."""

    @abstractmethod
    async def end_processes(self) -> None:
        """Kill everything that runs inside and wait until it is gone. Files stay, commands can run again."""

    @abstractmethod
    async def close(self) -> None:
        """End all processes and remove all that the sandbox held on the host. May be called twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error) -> None:
        await self.close()


class Backend(ABC):
    """One way to make sandboxes."""

    name: str
    enforced: str  # how limits are kept here, in a phrase
    isolates = True  # False: commands reach the host; nothing that an agent wrote may run there

    @abstractmethod
    async def build(self, folder: Path) -> Image:
        """Build ``folder/Dockerfile``, the folder being its context. The same content is built once.

        Raises ``ImageError`` with one sentence, ``SandboxError`` where the backend itself failed.
        """

    @abstractmethod
    async def start(self, image: Image, limits: Limits) -> Sandbox:
        """Start a sandbox of an image that this backend built. Raises ``SandboxError``."""
