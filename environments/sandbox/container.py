"""A sandbox that is a Docker container: commands are execs, files go in and out as archives.

No program of the container is run to move files or to end processes: what an agent did to its own tools
changes neither.
"""

import asyncio
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import docker.errors

from environments.sandbox import archive
from environments.sandbox.disk_watch import DiskWatch
from environments.sandbox.engine import Engine, one_line
from environments.sandbox.execution import NOT_RUNNING, Ended, Execution
from environments.sandbox.files import read_folder
from environments.sandbox.interface import Image, Limits, Result, Sandbox, SandboxError

KILLED = 137
CANNOT_RUN = 126
TRIES = 3  # of a command, where all processes, the first too, had ended before it began
LINKS = 16  # followed by a read before they count as a circle
WAIT_SECONDS = 60  # for processes that were killed to be gone
NOT_A_FILE = 0b1000_1111_0010_1000_0000_0000_0000_0000  # bits of Go's FileMode that tell types
LINK = 1 << 27


class Container(Sandbox):
    """``watch`` may end its processes at any time; it stops watching a container that is closed."""

    def __init__(self, engine: Engine, identity: str, image: Image, limits: Limits, watch: DiskWatch) -> None:
        self.identity = identity
        self._engine, self._api = engine, engine.api
        self._image, self._limits, self._watch = image, limits, watch
        self._lock = asyncio.Lock()
        self._starts = 0  # of the first process, after the one that made it
        self._broken = ""  # why no process can be started in it any more
        self._closed = False

    async def run(
        self,
        command: str,
        *,
        seconds: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Result:
        self._check_open()
        words = (command, cwd or "", *(f"{name}={value}" for name, value in (environment or {}).items()))
        if any("\0" in word for word in words):
            return Result(CANNOT_RUN, "the command cannot be run: it holds a zero byte")
        try:
            "".join(words).encode(errors="surrogateescape")
        except UnicodeEncodeError as error:
            return Result(CANNOT_RUN, f"the command cannot be run: {error}")
        folder, user = cwd or self._image.workdir, self._image.user
        for _ in range(TRIES):
            starts = self._starts
            execution = Execution(self._api, self.identity, self._limits.output_bytes)
            ended = await self._guarded(
                execution, execution.run, command, folder, dict(environment or {}), user, seconds
            )
            if ended.begun:
                break
            async with self._lock:
                if not await self._engine.call(self._revive, starts):
                    break
        else:
            ended = Ended(None, NOT_RUNNING)
        return await self._result(ended)

    async def _guarded(self, execution: Execution, function: Callable, *arguments: Any) -> Ended:
        """Run it in a thread; when this task is cancelled the command ends, too."""
        try:
            return await self._engine.call(function, *arguments)
        except asyncio.CancelledError:
            execution.close()
            if not self._closed:
                await asyncio.shield(self.end_processes())
            raise

    async def _result(self, ended: Ended) -> Result:
        if ended.timed_out:
            await self.end_processes()
        if self._broken and not ended.begun:
            return Result(CANNOT_RUN, self._broken)
        returncode = KILLED if ended.returncode is None else ended.returncode
        return Result(returncode, ended.output, ended.timed_out, ended.dropped_bytes)

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        await self._put(path, archive.one_file(archive.inside(path), content, mode))

    async def upload(self, folder: Path, target: str) -> None:
        self._check_open()
        entries = await asyncio.to_thread(read_folder, Path(folder))
        await self._put(target, archive.folder(archive.inside(target), entries))

    async def read(self, path: str, limit: int = 1_000_000) -> bytes:
        self._check_open()
        return await self._engine.call(self._read, path, limit)

    async def end_processes(self) -> None:
        self._check_open()
        async with self._lock:
            await self._engine.call(self._restart)

    async def close(self) -> None:
        async with self._lock:
            if self._closed:
                return
            self._closed = True
            self._watch.remove(self.identity)
            await self._engine.call(self._remove)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed")

    async def _put(self, path: str, data: bytes) -> None:
        self._check_open()
        await self._engine.call(self._put_archive, path, data)

    # What follows blocks and runs in threads of the engine.

    def _put_archive(self, path: str, data: bytes) -> None:
        try:
            self._api.put_archive(self.identity, "/", data)
        except docker.errors.APIError:
            if not (in_the_way := self._in_the_way(path)):
                raise
            self._api.put_archive(self.identity, "/", archive.folders(in_the_way))
            self._api.put_archive(self.identity, "/", data)

    def _in_the_way(self, path: str) -> list[str]:
        """The folders above a path from the first one that is something else: a file, a link to nowhere."""
        *above, _ = archive.inside(path).split("/")
        paths = ["/".join(above[: depth + 1]) for depth in range(len(above))]
        for depth, folder in enumerate(paths):
            try:
                kind = self._stat(f"/{folder}")[1]["mode"]
            except FileNotFoundError:
                return paths[depth:]
            if not kind & 1 << 31:
                return paths[depth:]
        return []

    def _read(self, path: str, limit: int) -> bytes:
        stream, stat = self._stat(path)
        if stat["mode"] & NOT_A_FILE:
            raise FileNotFoundError(f"{path} is no regular file")
        try:
            return archive.first_file(stream, limit)
        except tarfile.TarError:
            raise FileNotFoundError(f"{path} changed while it was read") from None

    def _stat(self, path: str) -> tuple[Any, dict]:
        """The archive and the kind of what a path leads to; links are resolved inside the container."""
        here = f"/{archive.inside(path)}"
        for _ in range(LINKS):
            try:
                stream, stat = self._api.get_archive(self.identity, here)
            except docker.errors.APIError as error:
                if "No such container" in str(error.explanation):
                    raise
                raise FileNotFoundError(f"{path}: {one_line(error.explanation)}") from None
            if not stat["mode"] & LINK:
                return stream, stat
            stream.close()
            here = stat["linkTarget"]
        raise FileNotFoundError(f"{path}: too many links")

    def _revive(self, starts: int) -> bool:
        """Start the first process again where it was ended; whether a command that did not begin may now.

        ``starts`` is the number of starts when it was tried.
        """
        if self._starts != starts:
            return True
        if self._watch.ended(self.identity):
            self._restart()  # which waits until the engine knows of that end
        elif not self._api.inspect_container(self.identity)["State"]["Running"]:
            self._start_again()
        return self._starts != starts

    def _restart(self) -> None:
        self._watch.forget(self.identity)
        try:
            self._api.kill(self.identity)
        except docker.errors.APIError as error:
            if error.status_code != 409:  # not running: what is wanted
                raise
        self._api.wait(self.identity, timeout=WAIT_SECONDS)
        self._start_again()

    def _start_again(self) -> None:
        """Start the first process where it does not run. The files are as they were."""
        try:
            self._api.start(self.identity)
        except docker.errors.APIError as error:
            if "OCI runtime" not in str(error.explanation):
                raise
            # It did start before: what ran inside took away what it needs.
            self._broken = f"the sandbox cannot start processes any more: {one_line(error.explanation)}"
        else:
            self._broken = ""
            self._starts += 1

    def _remove(self) -> None:
        try:
            self._api.remove_container(self.identity, force=True, v=True)
        except docker.errors.NotFound:
            pass
        except docker.errors.APIError as error:
            if "already in progress" not in str(error.explanation):
                raise
