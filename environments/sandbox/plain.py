"""Plain processes in a temporary folder, for tests of what uses a sandbox. THIS PROTECTS NOTHING.

Commands run as we do, on the host's files and with its network; of the limits only time and output are
kept. The methods put absolute paths below the sandbox's folder, where commands start and which ``SANDBOX``
names; a command that writes ``/tmp/x`` writes it on the host, so Dockerfiles with RUN are refused.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from environments.sandbox.children import Child
from environments.sandbox.dockerfile import BASE_ENVIRONMENT, read_dockerfile
from environments.sandbox.files import read_folder
from environments.sandbox.images import read_sources
from environments.sandbox.interface import Backend, Image, ImageError, Limits, Result, Sandbox, SandboxError
from environments.sandbox.output import Output
from environments.sandbox.tree import Tree


class PlainProcess(Backend):
    name = "process"
    enforced = "no limit is kept"
    isolates = False

    async def build(self, folder: Path) -> Image:
        """Nothing is built: the instructions are read again for each sandbox."""
        workdir, environment = "/", {**BASE_ENVIRONMENT, "PATH": os.environ["PATH"]}
        for instruction in read_dockerfile(folder):
            match instruction.kind:
                case "RUN" | "USER":
                    raise ImageError(
                        f"Dockerfile line {instruction.line}: {instruction.kind} needs a real sandbox"
                    )
                case "WORKDIR":
                    workdir = instruction.value
                case "ENV":
                    environment |= dict(instruction.value)
        return Image(str(folder.resolve()), workdir, environment)

    async def start(self, image: Image, limits: Limits) -> "PlainSandbox":
        root = Path(tempfile.mkdtemp(prefix="plain-process-"))
        sandbox = PlainSandbox(root, image, limits)
        try:
            await asyncio.to_thread(sandbox.fill, Path(image.name))
        except BaseException:
            await sandbox.close()
            raise
        return sandbox


class PlainSandbox(Sandbox):
    def __init__(self, root: Path, image: Image, limits: Limits) -> None:
        self._root, self._image, self._limits = root, image, limits
        self._tree = Tree(root, os.geteuid())
        self._sessions: list[int] = []
        self._outputs: list[Output] = []

    def fill(self, context: Path) -> None:
        for instruction in read_dockerfile(context):
            if instruction.kind == "WORKDIR" and instruction.value != "/":
                self._tree.make_folder(instruction.value)
            elif instruction.kind == "COPY":
                for source, entries in read_sources(context, instruction):
                    self._tree.add(source, entries, instruction.value.target)

    async def run(
        self,
        command: str,
        *,
        seconds: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Result:
        readable, writable = os.pipe()
        try:
            child = Child(
                ["bash", "-c", command], output=writable, cwd=f"{self._root}{cwd or self._image.workdir}",
                environment={**self._image.environment, **(environment or {}), "SANDBOX": str(self._root)},
            )  # fmt: skip
        except (OSError, ValueError) as error:
            os.close(readable)
            return Result(126, f"the command cannot be run: {error}")
        finally:
            os.close(writable)
        output = Output(readable, self._limits.output_bytes)
        self._sessions.append(child.pid)
        self._outputs.append(output)
        timed_out = False
        try:
            await asyncio.wait_for(asyncio.shield(child.done), seconds)
        except TimeoutError:
            timed_out = True
            _kill(child.pid)
        returncode = await child.wait()
        text = output.finish()
        return Result(128 - returncode if returncode < 0 else returncode, text, timed_out, output.dropped)

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        await self._files(self._tree.write, path, content, mode)

    async def read(self, path: str, limit: int = 1_000_000) -> bytes:
        return await self._files(self._tree.read, path, limit)

    async def upload(self, folder: Path, target: str) -> None:
        await self._files(lambda: self._tree.upload(read_folder(folder), target))

    async def _files(self, action, *arguments):
        try:
            return await asyncio.to_thread(action, *arguments)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise SandboxError(f"a file of the sandbox cannot be reached: {error}") from error

    async def end_processes(self) -> None:
        """What has left its session is not found."""
        for session in self._sessions:
            _kill(session)
        for output in self._outputs:
            output.close()
        self._sessions, self._outputs = [], []

    async def close(self) -> None:
        await self.end_processes()
        self._tree.close()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)


def _kill(session: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
