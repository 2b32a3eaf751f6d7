"""Python programs of a policy, run on data: in a child process, or in a sandbox where one is given.

What decides about a reward never goes in: the program gets inputs only, and what it prints is compared
outside. Before the policy's code starts, the guard closes the way to files, sockets and further modules: no
file descriptor can be opened any more, and only the named modules of the standard library are loaded.
"""

import ast
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from environments.sandbox import interface as sandbox
from environments.sandbox import process
from environments.sandbox.interface import SandboxError
from environments.sandbox.process import Outcome, run_python

MODULES = frozenset({
    "bisect", "calendar", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string",
    "typing",
})  # fmt: skip
LIMITS = sandbox.Limits(memory_mb=512, processes=16, disk_mb=16, output_bytes=process.MAX_OUTPUT_BYTES)
DOCKERFILE = "FROM python:3.11-slim-bookworm\nWORKDIR /\n"

GUARD = """
import sys
task = eval(sys.stdin.read())
for module in task["modules"]:
    __import__(module)
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""


class Runner(ABC):
    """Runs the guard, a program and its data; ``task`` is in the program's names."""

    async def run(self, program: str, code: str, seconds: int = 4, **data) -> Outcome:
        """``data`` holds literals. Raises ``SandboxError`` when the program could not be run at all."""
        task = ascii({"code": code, "modules": sorted(modules_of(code)), **data})
        return await self._run(GUARD + program, task, seconds)

    @abstractmethod
    async def _run(self, program: str, text: str, seconds: int) -> Outcome: ...


class ProcessRunner(Runner):
    """A limited child process of this one: quick, and for tasks where an escape is no concern."""

    async def _run(self, program: str, text: str, seconds: int) -> Outcome:
        return await run_python(program, text, cpu_seconds=seconds)


class SandboxRunner(Runner):
    """A fresh sandbox a program, from one image that holds Python alone."""

    def __init__(self, backend: sandbox.Backend):
        self._backend = backend

    async def _run(self, program: str, text: str, seconds: int) -> Outcome:
        try:
            image = await self._build()
            async with await self._backend.start(image, LIMITS) as box:
                await box.write("/tmp/program.py", program.encode())
                await box.write("/tmp/task", text.encode())
                # Nothing of the folder it lies in is imported (-I), nor what was installed (-S).
                command = f"ulimit -t {seconds}; exec python3 -I -S /tmp/program.py < /tmp/task 2> /dev/null"
                result = await box.run(command, seconds=60.0)
        except (sandbox.SandboxError, sandbox.ImageError) as error:
            raise SandboxError(str(error)) from error
        return Outcome(result.returncode, result.output, result.timed_out)

    async def _build(self) -> sandbox.Image:
        with tempfile.TemporaryDirectory() as folder:  # the backend builds the same content once
            (Path(folder) / "Dockerfile").write_text(DOCKERFILE)
            return await self._backend.build(Path(folder))


def runner(backend: sandbox.Backend | None) -> Runner:
    return ProcessRunner() if backend is None else SandboxRunner(backend)


def modules_of(code: str) -> set[str]:
    """The allowed modules that a program imports anywhere; none where it is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.partition(".")[0] in MODULES}


def last_value(output: str):
    """The Python literal on the last line of an output; None where there is none."""
    try:
        return ast.literal_eval(output.strip().rpartition("\n")[2])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
