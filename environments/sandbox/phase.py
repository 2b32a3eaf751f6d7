"""A holder and its phases: ``end_processes`` ends one, the next command begins another."""

import asyncio
import os
import re

from environments.sandbox.children import Child, Exit, lifeline
from environments.sandbox.interface import SandboxError

SECONDS = 60.0  # for what takes milliseconds on a machine at rest


class Phase:
    """A PID and a network namespace, held open by descriptors: numbers of processes may be given again."""

    def __init__(self, first: int, network: bool) -> None:
        self.exit = Exit(first)
        self.pid_namespace = self.net_namespace = None
        try:
            self.pid_namespace = os.open(f"/proc/{first}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            if not network:
                self.net_namespace = os.open(f"/proc/{first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise SandboxError(f"the first process of a sandbox ended at once ({error.strerror})") from None
        self.first = first

    @property
    def alive(self) -> bool:
        return not self.exit.done.done()

    async def end(self) -> None:
        """Kill the first process; the kernel kills all others with it, and it is gone once they are."""
        self.exit.kill()
        try:
            await asyncio.wait_for(asyncio.shield(self.exit.done), SECONDS)
        except TimeoutError:
            raise SandboxError(f"processes of a sandbox did not end within {SECONDS:.0f} seconds") from None
        self.close()

    def close(self) -> None:
        for descriptor in (self.pid_namespace, self.net_namespace):
            if descriptor is not None:
                os.close(descriptor)
        self.pid_namespace = self.net_namespace = None


class Holder:
    """The process that keeps a sandbox's mounts. ``start`` one, ask for phases, ``close`` it."""

    def __init__(self, child: Child, write: int, network: bool) -> None:
        self.child, self._write, self._network = child, write, network
        self._said: asyncio.StreamReader
        self._transport: asyncio.ReadTransport

    @classmethod
    async def start(cls, arguments: list[str], folder: str, network: bool) -> tuple["Holder", Phase]:
        """Run the holder in ``folder``; returns when everything is mounted and its first phase has begun."""
        given, write = os.pipe()
        readable, said = os.pipe()
        try:
            child = Child(arguments, stdin=given, output=said, stderr=lifeline(), cwd=folder)
        except OSError as error:
            for descriptor in (write, readable):
                os.close(descriptor)
            raise SandboxError(f"no process for a sandbox can be started: {error}") from error
        finally:
            os.close(given)
            os.close(said)
        holder = cls(child, write, network)
        holder._said = asyncio.StreamReader()
        holder._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(holder._said), os.fdopen(readable, "rb", buffering=0)
        )
        try:
            return holder, await holder._begin(first=True)
        except BaseException:
            child.kill()
            await holder.close()
            raise

    async def phase(self) -> Phase:
        try:
            os.write(self._write, b"\n")
        except OSError:
            raise SandboxError("the holder of a sandbox was killed from outside") from None
        return await self._begin(first=False)

    async def close(self) -> None:
        """Everything inside must have ended, or ends now. May be called twice."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
        try:
            await asyncio.wait_for(asyncio.shield(self.child.done), SECONDS)
        except TimeoutError:
            self.child.kill()
        await self.child.wait()
        self._transport.close()

    async def _begin(self, first: bool) -> Phase:
        try:
            return await asyncio.wait_for(self._read_phase(ready=not first), SECONDS)
        except TimeoutError:
            raise SandboxError(f"a sandbox did not start within {SECONDS:.0f} seconds") from None

    async def _read_phase(self, ready: bool) -> Phase:
        said = "ready" if ready else ""
        while (number := started(said)) is None:
            data = await self._said.read(4096)
            if not data:
                raise SandboxError(f"no sandbox can be made here: {complaint(said)}")
            said += data.decode(errors="replace")
        return Phase(number, self._network)


def started(said: str) -> int | None:
    """The number of the first process, once the holder has said that and "ready", in any mixture."""
    found = re.search(r'"child-pid": (\d+)\D', said)
    return int(found[1]) if found and "ready" in said else None


def complaint(said: str) -> str:
    """What is no report in what a holder said that did not start."""
    lines = re.sub(r"\{[^}]*\}|ready", "", said).split("\n")
    return "; ".join(line.strip() for line in lines if line.strip()) or "its first process did not start"
