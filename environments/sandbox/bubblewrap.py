"""The default backend: bubblewrap, overlays and control groups; no service, no root needed."""

import asyncio
import contextlib
import errno
import json
import os
import resource
from collections.abc import Mapping
from pathlib import Path

from environments.sandbox import cgroups, namespaces
from environments.sandbox.cgroups import Group
from environments.sandbox.children import Child
from environments.sandbox.files import Entry, read_folder
from environments.sandbox.images import Builder
from environments.sandbox.interface import Backend, Image, Limits, Result, Sandbox, SandboxError
from environments.sandbox.layers import Layers
from environments.sandbox.output import Output
from environments.sandbox.phase import Holder, Phase
from environments.sandbox.tree import Tree

KILLED = 137
GRACE = 2.0  # seconds
DESCRIPTORS = 65_536  # a sandbox holds about ten; the usual limit of 1,024 would end at a hundred of them


class Bubblewrap(Backend):
    name = "bubblewrap"

    def __init__(self, cache: Path) -> None:
        self._layers = Layers(cache, namespaces.owner())
        self._groups = cgroups.find()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        self._builder = Builder(self._layers, self._start)

    async def build(self, folder: Path) -> Image:
        return await self._builder.build(folder)

    async def start(self, image: Image, limits: Limits) -> "BubblewrapSandbox":
        return await self._start(self._layers.chain(image.name), limits, image)

    @property
    def enforced(self) -> str:
        if self._groups is not None:
            version = self._groups.version
            return f"memory, processes and CPU by control groups (version {version}), disk by a tmpfs"
        return "memory of each process and their number by rlimits, disk by a tmpfs, CPU not at all"

    async def _start(
        self, chain: list[str], limits: Limits, image: Image, draft: str | None = None
    ) -> "BubblewrapSandbox":
        """``draft``: a folder beside the layers that keeps what is written; its steps have the network."""
        network = draft is not None
        group = await self._make_group(limits) if self._groups else None
        try:
            entrances = group.entrances() if group else []
            arguments = namespaces.holder(limits.disk_mb, chain, draft, network, entrances)
            holder, phase = await Holder.start(arguments, str(self._layers.folder), network)
            try:
                tree = Tree(Path(f"/proc/{holder.child.pid}/root{namespaces.ROOT}"), self._layers.owner)
            except OSError as error:
                await phase.end()
                await holder.close()
                raise SandboxError(f"the files of a sandbox cannot be reached: {error}") from error
        except BaseException:
            if group:
                await asyncio.to_thread(group.remove)
            raise
        return BubblewrapSandbox(holder, phase, tree, group, limits, image)

    async def _make_group(self, limits: Limits) -> Group:
        """A control group, removed again where nobody waits for it any more: its thread cannot be stopped."""
        making = asyncio.ensure_future(asyncio.to_thread(self._groups.make, limits))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await asyncio.to_thread((await making).remove)
            raise


class BubblewrapSandbox(Sandbox):
    def __init__(
        self, holder: Holder, phase: Phase, tree: Tree, group: Group | None, limits: Limits, image: Image
    ) -> None:
        self._holder, self._phase, self._tree, self._group = holder, phase, tree, group
        self._limits, self._image = limits, image
        self._outputs: list[Output] = []
        self._lock = asyncio.Lock()
        self._closed = False
        self.binds: Mapping[str, str] = {}  # host paths that a build's steps may read

    async def run(
        self,
        command: str,
        *,
        seconds: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Result:
        return await self.run_program(["/usr/bin/bash", "-c", command, "bash"], seconds, cwd, environment)

    async def run_program(
        self, argv: list[str], seconds: float, cwd: str | None, environment: Mapping[str, str] | None
    ) -> Result:
        phase = await self._current_phase()
        result = await self._run(phase, argv, seconds, cwd, environment)
        if result is None and phase is self._phase and not self._closed:  # it died before the command began
            result = await self._run(await self._current_phase(), argv, seconds, cwd, environment)
        return result or Result(KILLED, "the sandbox's processes were ended")

    async def _current_phase(self) -> Phase:
        async with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if not self._phase.alive:
                self._phase.close()
                self._phase = await self._holder.phase()
            return self._phase

    async def _run(self, phase: Phase, argv, seconds, cwd, environment) -> Result | None:
        """None when the phase had ended before the command began."""
        with contextlib.ExitStack() as ours:  # what is open until the command has ended
            try:
                members = self._group.command() if self._group else None
                (readable, writable), (told, status) = os.pipe(), os.pipe()
            except OSError as error:
                raise SandboxError(f"a command cannot be started: {error}") from error
            ours.callback(os.close, told)
            output = Output(readable, self._limits.output_bytes)
            self._outputs = [*(old for old in self._outputs if old.open), output]
            try:
                child = self._enter(phase, argv, cwd, environment, members, writable, status)
            except (OSError, ValueError) as error:
                output.close()
                if isinstance(error, ValueError) or error.errno == errno.E2BIG:  # a zero byte, too long
                    return Result(126, f"the command cannot be run: {error}")
                raise SandboxError(f"a command cannot be started: {error}") from error
            finally:
                os.close(writable)
                os.close(status)
            timed_out = await self._wait(child, members, phase, seconds)
            returncode = await child.wait()
            text, said = output.finish(), _said(told)
        if timed_out:
            return Result(KILLED, text, True, output.dropped)
        if not said and not phase.alive:
            return None
        if "exit-code" not in said and returncode != KILLED:
            return None if not phase.alive else Result(126, text, False, output.dropped)
        return Result(returncode if returncode >= 0 else KILLED, text, False, output.dropped)

    def _enter(self, phase: Phase, argv, cwd, environment, members, writable: int, status: int) -> Child:
        net = phase.net_namespace
        arguments = namespaces.command(
            argv, holder=self._holder.child.pid, pid_namespace=phase.pid_namespace, net_namespace=net,
            status=status, cwd=cwd or self._image.workdir,
            environment={**self._image.environment, **(environment or {})}, binds=self.binds,
            groups=self._group.entrances_of(members) if members else [],
            limits=[] if members else _prlimit(self._limits),
        )  # fmt: skip
        passed = [phase.pid_namespace, status, *([] if net is None else [net])]
        return Child(arguments, output=writable, pass_fds=passed)

    async def _wait(self, child: Child, members: Path | None, phase: Phase, seconds: float) -> bool:
        """Whether the command was over its time, and killed."""
        try:
            await asyncio.wait_for(asyncio.shield(child.done), seconds)
            return False
        except TimeoutError:
            await self._kill(child, members, phase)
            return True
        except asyncio.CancelledError:
            await asyncio.shield(self._kill(child, members, phase))
            raise

    async def _kill(self, child: Child, members: Path | None, phase: Phase) -> None:
        """End a command with all that it started; without control groups all else inside ends with it."""
        if members is None:
            await self._end(phase)
        else:
            await asyncio.to_thread(cgroups.kill, members, child.pid)
        try:  # bubblewrap ends by itself once its command has, unless it had not begun yet
            await asyncio.wait_for(asyncio.shield(child.done), GRACE)
        except TimeoutError:
            child.kill()
            await child.wait()

    async def _end(self, phase: Phase) -> None:
        async with self._lock:
            if phase.alive:
                await phase.end()

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        await self._files(self._tree.write, path, content, mode)

    async def read(self, path: str, limit: int = 1_000_000) -> bytes:
        return await self._files(self._tree.read, path, limit)

    async def upload(self, folder: Path, target: str) -> None:
        await self._files(lambda: self._tree.upload(read_folder(folder), target))

    async def make_folder(self, path: str) -> None:
        if path != "/":
            await self._files(self._tree.make_folder, path)

    async def copy(self, sources: list[tuple[Entry, list[Entry]]], target: str) -> None:
        for source, entries in sources:
            await self._files(self._tree.add, source, entries, target)

    async def _files(self, action, *arguments):
        if self._closed:
            raise SandboxError("the sandbox is closed")
        try:
            return await asyncio.to_thread(action, *arguments)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise SandboxError(f"a file of the sandbox cannot be reached: {error}") from error

    async def end_processes(self) -> None:
        async with self._lock:
            if self._phase.alive:
                await self._phase.end()
            self._close_outputs()

    async def close(self) -> None:
        async with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                await self._phase.end()
            finally:
                self._close_outputs()
                self._tree.close()
                await self._holder.close()
                if self._group:
                    await asyncio.to_thread(self._group.remove)

    def _close_outputs(self) -> None:
        for output in self._outputs:
            output.close()
        self._outputs = []


def _prlimit(limits: Limits) -> list[str]:
    memory, files = limits.memory_mb * 2**20, limits.disk_mb * 2**20
    return [f"--as={memory}", f"--nproc={limits.processes}", f"--fsize={files}", "--core=0"]


def _said(told: int) -> dict:
    """What bubblewrap said: ``child-pid`` before anything of the command runs, ``exit-code`` after."""
    os.set_blocking(told, False)
    said = {}
    with contextlib.suppress(BlockingIOError):
        for line in os.read(told, 4096).decode().splitlines():
            with contextlib.suppress(ValueError):
                said |= json.loads(line)
    return said
