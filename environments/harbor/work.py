"""What an agent made, carried from its sandbox into a clean one.

Nothing that the agent did elsewhere comes along: no changed /usr, shell, interpreter, start-up file or
process. Of its work, links that lead out of the carried folder are left out, so that no file of it can turn
out to be one of the tests.
"""

import asyncio
import contextlib
import secrets
import shlex
import stat
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from environments.harbor.archive import unpack_work
from environments.harbor.config import Artifact
from environments.sandbox.interface import Sandbox

SECONDS = 60.0  # for packing one artifact
MAX_BYTES = 256 * 2**20  # of all artifacts, packed
ABSENT = 44  # exit status that says so


class WorkLost(Exception):
    """The agent's sandbox gave nothing that can be carried."""


@dataclass(frozen=True)
class Carried:
    path: str  # in the sandbox
    content: Path | None  # a folder or a file of the host; None: the agent has none there
    left_out: int = 0
    packed_bytes: int = 0


@contextlib.asynccontextmanager
async def taken(
    sandbox: Sandbox, artifacts: list[Artifact], most: int = MAX_BYTES
) -> AsyncIterator[list[Carried]]:
    """The artifacts on the host, until the context ends. Raises ``WorkLost``, ``SandboxError``.

    ``most`` is the number of bytes of all together, packed.
    """
    with tempfile.TemporaryDirectory(prefix="work-") as folder:
        work: list[Carried] = []
        for number, artifact in enumerate(artifacts):
            left = most - sum(item.packed_bytes for item in work)
            work.append(await _take(sandbox, artifact, Path(folder) / str(number), left))
        yield work


async def put(sandbox: Sandbox, work: list[Carried]) -> None:
    """Write the work into a clean sandbox, in place of what its image has there."""
    for item in work:
        if item.content is None:
            await sandbox.run(f"rm -rf -- {shlex.quote(item.path)}", cwd="/")
        elif item.content.is_dir():
            await sandbox.upload(item.content, item.path)
        else:
            mode = stat.S_IMODE(item.content.stat().st_mode)
            await sandbox.write(item.path, item.content.read_bytes(), mode)


async def _take(sandbox: Sandbox, artifact: Artifact, place: Path, most: int) -> Carried:
    source = PurePosixPath(artifact.source)
    packed = f"/tmp/work-{secrets.token_hex(8)}.tar"
    exclude = "".join(f" --exclude={shlex.quote(pattern)}" for pattern in artifact.exclude)
    what, parent, name = (shlex.quote(str(path)) for path in (source, source.parent, source.name))
    result = await sandbox.run(
        f"if [ -d {what} ]; then cd {what}; set .; "
        f"elif [ -e {what} ]; then cd {parent}; set {name}; echo file; "
        f"else exit {ABSENT}; fi; exec tar --hard-dereference{exclude} -cf {packed} -- \"$1\"",
        seconds=SECONDS, cwd="/",
    )  # fmt: skip
    if result.returncode == ABSENT:
        return Carried(str(source), None)
    try:
        content = await sandbox.read(packed, most + 1)
        if len(content) > most:
            raise WorkLost(f"{source} could not be packed: it is too large")
        if result.returncode > 1:  # 1: a file changed meanwhile
            said = " ".join(result.output.split())[:200] or f"tar ended with {result.returncode}"
            raise WorkLost(f"{source} could not be packed: {said}")
        # Unpacking takes a while: other episodes go on meanwhile.
        left_out = await asyncio.to_thread(unpack_work, content, place, str(source))
    except (FileNotFoundError, ValueError) as error:
        raise WorkLost(f"{source} could not be packed ({error})") from None
    if result.output.startswith("file\n"):
        place /= source.name
        if not place.is_file() or place.is_symlink():
            return Carried(str(source), None, left_out)
    return Carried(str(source), place, left_out, len(content))
