"""Dockerfiles, interpreted: COPY and RUN make layers, all else is remembered. The base is the host's own."""

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from environments.sandbox import base
from environments.sandbox.dockerfile import BASE_ENVIRONMENT, Instruction, read_dockerfile
from environments.sandbox.files import Entry, digest, read_file, read_folder
from environments.sandbox.interface import Image, ImageError, Limits, SandboxError
from environments.sandbox.layers import Layers

KNOWN_BASES = re.compile(
    r"(docker\.io/)?(library/)?(python:3(\.\d+)*(-slim)?(-bookworm)?|debian:(bookworm|12)(-slim)?)"
)
BUILD_LIMITS = Limits(memory_mb=4096, cpus=2.0, processes=1024, disk_mb=512)
BUILD_SECONDS = 600.0
HOME = {"HOME": "/root"}
PIP = {"PIP_NO_CACHE_DIR": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_BREAK_SYSTEM_PACKAGES": "1"}


class Builder:
    """``start(chain, limits, image, draft)`` starts a sandbox whose writes stay in the draft."""

    def __init__(self, layers: Layers, start: Callable[..., Awaitable]) -> None:
        self._layers, self._start = layers, start
        self._making: dict[str, asyncio.Future[None]] = {}

    async def build(self, folder: Path) -> Image:
        instructions = await asyncio.to_thread(read_dockerfile, folder)
        chain = await self._base()
        environment, arguments, workdir = {**BASE_ENVIRONMENT, **HOME}, {}, "/"
        for instruction in instructions:
            match instruction.kind:
                case "FROM":
                    _check_base(instruction)
                    environment |= {"LANG": "C.UTF-8"} if "python" in instruction.value else {}
                case "ARG":
                    name, value = instruction.value
                    arguments |= {name: value} if value is not None else {}
                case "ENV":
                    environment |= dict(instruction.value)
                case "USER":
                    _check_user(instruction)
                case "WORKDIR":
                    workdir = instruction.value
                    chain = await self._layer(chain, f"folder {workdir}", _make_folder, workdir)
                case "COPY":
                    sources = await asyncio.to_thread(read_sources, folder, instruction)
                    target = instruction.value.target
                    what = f"copy {target} {[(source.path, digest(below)) for source, below in sources]}"
                    chain = await self._layer(chain, what, _copy, sources, target)
                case "RUN":
                    visible = {**arguments, **environment}
                    what = f"run {instruction.value!r} {workdir} {sorted(visible.items())}"
                    chain = await self._layer(chain, what, _step, instruction, workdir, visible)
        return Image(chain[0], workdir, environment)

    async def _base(self) -> list[str]:
        key = base.key(self._layers.owner)
        await self._once(key, self._make_base)
        # The loader finds Python's library in /usr/local through this program's list.
        return await self._layer([key], "ldconfig", _list_libraries)

    async def _make_base(self, key: str) -> None:
        with self._layers.draft() as draft:
            await asyncio.to_thread(base.make, draft / "tree")
            await asyncio.to_thread(self._layers.give_all, draft / "tree")
            await asyncio.to_thread(self._layers.publish, draft, key, [])

    async def _layer(
        self, chain: list[str], what: str, act: Callable[..., Awaitable], *arguments
    ) -> list[str]:
        """The chain with a layer on top that holds what ``act`` does to a sandbox of it."""

        async def make(key: str) -> None:
            with self._layers.draft() as draft:
                bottom = Image(chain[0], "/", dict(BASE_ENVIRONMENT))
                async with await self._start(chain, BUILD_LIMITS, bottom, draft.name) as box:
                    await act(box, *arguments)
                await asyncio.to_thread(self._layers.publish, draft, key, chain)

        key = hashlib.sha256(f"{chain[0]} {what}".encode(errors="surrogateescape")).hexdigest()[:20]
        await self._once(key, make)
        return [key, *chain]

    async def _once(self, key: str, make: Callable[[str], Awaitable[None]]) -> None:
        """Make a layer that is not there yet; several tasks that need it wait for the first."""
        while not self._layers.has(key):
            if key in self._making:
                await asyncio.wait([self._making[key]])
                continue
            self._making[key] = asyncio.get_running_loop().create_future()
            try:
                await make(key)
            finally:
                self._making.pop(key).set_result(None)


async def _make_folder(box, path: str) -> None:
    await box.make_folder(path)


async def _copy(box, sources: list[tuple[Entry, list[Entry]]], target: str) -> None:
    await box.copy(sources, target)


async def _list_libraries(box) -> None:
    result = await box.run_program(["/sbin/ldconfig", "-X"], BUILD_SECONDS, "/", None)
    if result.returncode:
        raise SandboxError(f"ldconfig failed in the base of all images: {result.output.strip()[-300:]}")


async def _step(box, instruction: Instruction, workdir: str, visible: dict[str, str]) -> None:
    """RUN, with the host's network and its settings of pip, which stay out of the image."""
    argv = instruction.value if isinstance(instruction.value, tuple) else ("/bin/sh", "-c", instruction.value)
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    box.binds = {
        os.path.realpath(file): file for file in ("/etc/resolv.conf", "/etc/pip.conf") if os.path.isfile(file)
    }
    result = await box.run_program(list(argv), BUILD_SECONDS, workdir, {**PIP, **pip, **visible})
    if result.timed_out:
        raise ImageError(
            f"Dockerfile line {instruction.line}: RUN took more than {BUILD_SECONDS:.0f} seconds"
        )
    if result.returncode:
        said = " ".join(result.output.split())[-400:] or "it said nothing"
        raise ImageError(f"Dockerfile line {instruction.line}: RUN ended with {result.returncode}: {said}")


def _check_base(instruction: Instruction) -> None:
    if not KNOWN_BASES.fullmatch(instruction.value):
        raise ImageError(
            f"Dockerfile line {instruction.line}: FROM {instruction.value} is not known to bubblewrap, which "
            "has the host's own base for python:3.x and debian:bookworm alone; use the Docker backend"
        )


def _check_user(instruction: Instruction) -> None:
    if instruction.value.split(":")[0] not in ("root", "0"):
        raise ImageError(
            f"Dockerfile line {instruction.line}: USER {instruction.value} is not supported by bubblewrap, "
            "where all runs as root without any capability; use the Docker backend"
        )


def read_sources(folder: Path, instruction: Instruction) -> list[tuple[Entry, list[Entry]]]:
    """What COPY copies: each file, or each folder (no content) with all that is in it."""
    context, sources = folder.resolve(), []
    for pattern in instruction.value.sources:
        found = [context] if pattern == "." else sorted(context.glob(pattern))
        if not found:
            raise ImageError(f"Dockerfile line {instruction.line}: COPY finds no {pattern}")
        for path in found:
            real = path.resolve()
            if not real.is_relative_to(context):
                raise ImageError(
                    f"Dockerfile line {instruction.line}: COPY {pattern} leads out of its folder"
                )
            if real.is_dir():
                sources.append((Entry(path.name, 0o755), read_folder(real)))
            elif real.is_file():
                file = read_file(real)
                sources.append((Entry(path.name, file.mode, file.content), [file]))
    return sources
