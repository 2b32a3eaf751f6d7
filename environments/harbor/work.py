"""What an agent made, carried from its sandbox into a clean one.

Nothing that the agent did elsewhere comes along: no changed /usr, shell, interpreter, start-up file or
process. Of its work, links that lead out of the carried folder are left out, so that no file of it can turn
out to be one of the tests.
"""

import asyncio
import contextlib
import secrets
import shlex
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from environments.harbor.archive import unpack_work
from environments.harbor.config import Artifact
from environments.sandbox.interface import Sandbox

SECONDS = 60.0  # for packing one artifact
MAX_BYTES = 256 * 2**20  # of one artifact


class WorkLost(Exception):
    """The agent's sandbox gave nothing that can be carried."""


@dataclass(frozen=True)
class Carried:
    path: str  # in the sandbox
    content: Path | None  # a folder or a file of the host; None: the agent has none there
    left_out: int = 0


@contextlib.asynccontextmanager
async def taken(sandbox: Sandbox, artifacts: list[Artifact]) -> AsyncIterator[list[Carried]]:
    """The artifacts on the host, until the context ends. Raises ``WorkLost``, ``SandboxError``."""
    with tempfile.TemporaryDirectory(prefix="work-") as folder:
        yield [
            await _take(sandbox, artifact, Path(folder) / str(number))
            for number, artifact in enumerate(artifacts)
        ]


async def put(sandbox: Sandbox, work: list[Carried]) -> None:
    """Write the work into a clean sandbox, in place of what its image has there."""
    for item in work:
        if item.content is None:
            await sandbox.run(f"rm -rf -- {shlex.quote(item.path)}", cwd="/")
        elif item.content.is_dir():
            await sandbox.upload(item.content, item.path)
        else:
            await sandbox.write(item.path, item.content.read_bytes(), 0o755)


async def _take(sandbox: Sandbox, artifact: Artifact, place: Path) -> Carried:
    source = artifact.source.rstrip("/")
    packed = f"/tmp/work-{secrets.token_hex(8)}.tar"
    exclude = " ".join(f"--exclude={shlex.quote(pattern)}" for pattern in artifact.exclude)
    command = f"tar --hard-dereference {exclude} -C {shlex.quote(source)} -cf {packed} ."
    result = await sandbox.run(
        f"[ -e {shlex.quote(source)} ] || exit 44; [ -d {shlex.quote(source)} ] || exit 45; exec {command}",
        seconds=SECONDS, cwd="/", environment={"TAR_OPTIONS": "", "BASH_ENV": ""},
    )  # fmt: skip
    if result.returncode == 44:
        return Carried(source, None)
    try:
        if result.returncode == 45:
            place.write_bytes(await _read(sandbox, source))
            return Carried(source, place)
        content = await _read(sandbox, packed)
        # Unpacking takes a while: other episodes go on meanwhile.
        return Carried(source, place, await asyncio.to_thread(unpack_work, content, place, source))
    except FileNotFoundError:
        raise WorkLost(f"{source} could not be packed (exit status {result.returncode})") from None
    except ValueError as error:
        raise WorkLost(f"{source} could not be packed ({error})") from None


async def _read(sandbox: Sandbox, path: str) -> bytes:
    content = await sandbox.read(path, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise WorkLost(f"{path} is larger than {MAX_BYTES // 2**20} MB")
    return content
