"""A child process for small snippets, with limits on time, memory, files and output; its whole group ends.

It does not cut off the network or the file system: that takes a real sandbox. Python starts isolated
(``-I -S``), so neither the environment nor installed packages can change what runs.
"""

import asyncio
import os
import signal
import sys
import weakref
from dataclasses import dataclass

from environments.sandbox.interface import SandboxError

MAX_OUTPUT_BYTES = 64_000

# Runs before the snippet, inside the child: limits cannot be raised again.
_LIMITS = """\
import resource as r, sys
for kind, limit in ((r.RLIMIT_CPU, {cpu}), (r.RLIMIT_AS, {memory}), (r.RLIMIT_FSIZE, 0), (r.RLIMIT_NPROC, 0),
                    (r.RLIMIT_CORE, 0), (r.RLIMIT_NOFILE, 16)):
    r.setrlimit(kind, (limit, limit))
"""


@dataclass(frozen=True)
class Outcome:
    returncode: int  # negative: the signal that killed it
    output: str  # of standard output, cut at 64,000 bytes
    timed_out: bool


_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


async def run_python(
    program: str, text: str, cpu_seconds: int = 2, seconds: float = 60.0, memory_mb: int = 256
) -> Outcome:
    """Run a Python program with ``text`` on its standard input.

    ``cpu_seconds`` bounds its own work. ``seconds`` bounds the time that passes, for programs that sleep: the
    20 ms of work of an honest one last seconds where a data stage yields its cores to training. Only as
    many programs as there are cores run at once, so the clock does not run while others of them do. Raises
    ``SandboxError`` when none can be started.
    """
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(os.cpu_count() or 1))
    async with slots:
        return await _run(program, text, cpu_seconds, seconds, memory_mb)


async def _run(program: str, text: str, cpu_seconds: int, seconds: float, memory_mb: int) -> Outcome:
    limits, data = _LIMITS.format(cpu=cpu_seconds, memory=memory_mb * 2**20), text.encode()
    # Standard input is a file and standard output a pipe of our own: asyncio's wait() for a process with
    # pipes of its own lasts until they close, which an unread or inherited one never does.
    given = os.memfd_create("stdin")
    os.write(given, data)
    os.lseek(given, 0, os.SEEK_SET)
    readable, writable = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", limits + program,
            stdin=given, stdout=writable, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True, env={}, cwd="/",
        )  # fmt: skip
    except OSError as error:
        os.close(readable)
        raise SandboxError(f"cannot start a child process: {error}") from error
    finally:
        os.close(given)
        os.close(writable)
    timed_out = False
    try:
        output = await asyncio.wait_for(_read(process, readable), seconds)
    except TimeoutError:
        output, timed_out = b"", True
    finally:
        _kill_group(process.pid)
        returncode = await process.wait()
    return Outcome(returncode, output.decode(errors="replace"), timed_out)


async def _read(process: asyncio.subprocess.Process, readable: int) -> bytes:
    """Standard output until it ends or is too long; closes ``readable``."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb", buffering=0)
    )
    try:
        output = b""
        while len(output) < MAX_OUTPUT_BYTES and (chunk := await reader.read(MAX_OUTPUT_BYTES - len(output))):
            output += chunk
        if len(output) < MAX_OUTPUT_BYTES:
            await process.wait()
        return output
    finally:
        transport.close()


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it has ended
