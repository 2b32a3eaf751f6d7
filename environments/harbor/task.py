"""A Harbor task folder, read and checked: the whole description of a terminal or SWE task.

    task.toml  instruction.md  environment/Dockerfile  solution/solve.sh  tests/test.sh

``load_task`` says in one sentence what is wrong with a folder; ``load_tasks`` goes on past broken ones. What
Harbor offers and this project does not run (several steps, compose files, GPUs, Windows) is refused by name.
"""

import asyncio
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from environments.harbor.config import TaskConfig, read_config
from environments.sandbox.dockerfile import read_dockerfile
from environments.sandbox.interface import Backend, Image, ImageError, Limits
from pipeline.errors import UserError

REQUIRED = ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh")
VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")
GRADERS = ("/tests", "/solution", "/logs/verifier")  # an agent's files never come to lie there
MAX_FILES = 20_000
MAX_BYTES = 256 * 2**20
MAX_TEXT_BYTES = 2**20  # of task.toml and of instruction.md


@dataclass(frozen=True)
class HarborTask:
    name: str  # organisation/name, or the folder's name where task.toml has none
    instruction: str
    config: TaskConfig
    folder: Path
    digest: str  # sha256 over paths, modes and content: two folders of the same digest are the same task

    @property
    def environment(self) -> Path:
        """The folder of the Dockerfile, its build context."""
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path | None:
        """The folder of solve.sh, None where the task has no solution."""
        folder = self.folder / "solution"
        return folder if (folder / "solve.sh").is_file() else None

    async def build(self, backend: Backend) -> Image:
        """Its image. Raises ``ImageError``, also where that takes longer than task.toml allows."""
        seconds = self.config.environment.build_timeout_sec
        try:
            async with asyncio.timeout(seconds):
                return await backend.build(self.environment)
        except TimeoutError:
            raise ImageError(
                f"{self.environment}: the image was not built in {seconds:g} s (build_timeout_sec)"
            ) from None

    def variables(self, table: dict[str, str]) -> dict[str, str]:
        """An ``env`` table of task.toml; ``${NAME:-default}`` is the default, nothing of this machine."""
        return {name: VARIABLE.sub(lambda match: match[1], value) for name, value in table.items()}

    @property
    def limits(self) -> Limits:
        """What task.toml says of resources; what it does not say is the default of ``Limits``."""
        machine, default = self.config.environment, Limits()
        return Limits(
            memory_mb=machine.memory_mb or default.memory_mb,
            cpus=machine.cpus or default.cpus,
            disk_mb=machine.storage_mb or default.disk_mb,
        )


def load_task(folder: Path) -> HarborTask:
    """The task of a folder. Raises ``UserError`` with one sentence about the first fault that it finds."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name the folder of a Harbor task")
    files = _files(folder)
    for name in REQUIRED:
        if name not in files:
            raise UserError(f"{folder}: {name} is missing, and every Harbor task needs it")
    config = read_config(_text(folder / "task.toml"), str(folder / "task.toml"))
    _refuse_unsupported(folder, config, files)
    instruction = _text(folder / "instruction.md").strip()
    if not instruction:
        raise UserError(f"{folder / 'instruction.md'} is empty: say there what is to be done")
    if not (folder / "tests/test.sh").stat().st_size:
        raise UserError(f"{folder / 'tests/test.sh'} is empty: it must write /logs/verifier/reward.txt")
    name = config.task.name if config.task else folder.resolve().name
    return HarborTask(name, instruction, config, folder.resolve(), _digest(folder, files))


def load_tasks(folder: Path) -> tuple[list[HarborTask], list[str]]:
    """All tasks right below ``folder``, sorted by the folder's name, and a sentence for each broken one."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name a folder of Harbor tasks")
    tasks: list[HarborTask] = []
    faults: list[str] = []
    names: dict[str, Path] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."):
        try:
            task = load_task(path)
        except UserError as fault:
            faults.append(str(fault))
            continue
        if task.name in names:
            faults.append(f"{path}: the name {task.name} is that of {names[task.name]}, give it another")
            continue
        names[task.name] = path
        tasks.append(task)
    return tasks, faults


def _files(folder: Path) -> dict[str, os.stat_result]:
    """Regular files below ``folder`` by relative path; links that lead outside are refused."""
    found: dict[str, os.stat_result] = {}
    root, size = folder.resolve(), 0
    try:
        for directory, folders, names in os.walk(folder, onerror=_raise):
            for name in folders + names:
                path = Path(directory) / name
                where = path.relative_to(folder).as_posix()
                if path.is_symlink():
                    _check_link(path, root)
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    found[where] = status
                    size += status.st_size
                elif not stat.S_ISDIR(status.st_mode):
                    raise UserError(f"{path} is neither a file nor a folder: remove it from the task")
            if len(found) > MAX_FILES or size > MAX_BYTES:
                raise UserError(
                    f"{folder} has over {MAX_FILES} files or {MAX_BYTES // 2**20} MB: make the task smaller"
                )
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read ({error.strerror})") from None
    return found


def _raise(error: OSError) -> None:
    raise error


def _check_link(path: Path, root: Path) -> None:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UserError(f"{path} is a link to nothing: remove it from the task") from None
    if not target.is_relative_to(root):
        raise UserError(f"{path} is a link that leads out of the task's folder: put a copy in its place")
    if target.is_dir():
        raise UserError(f"{path} is a link to a folder: put a copy in its place")


def _text(path: Path) -> str:
    content = path.read_bytes()
    if len(content) > MAX_TEXT_BYTES:
        raise UserError(f"{path} is longer than {MAX_TEXT_BYTES} bytes: make it shorter")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    if "\0" in text:
        raise UserError(f"{path} holds a zero byte: it must be text")
    return text


def _refuse_unsupported(folder: Path, config: TaskConfig, files: dict[str, os.stat_result]) -> None:
    machine, verifier, artifacts = config.environment, config.verifier, config.artifact_paths()
    used = {
        "steps": config.steps,
        "environment.os = 'windows'": machine.os != "linux",
        "environment.docker_image": machine.docker_image,
        "environment.gpus": machine.gpus,
        "environment.tpu": machine.tpu,
        "environment.mcp_servers": machine.mcp_servers,
        "environment.skills_dir": machine.skills_dir,
        "environment.healthcheck": machine.healthcheck,
        "verifier.environment": verifier.environment,
        "agent.user": config.agent.user not in (None, "root", 0),
        "verifier.user": verifier.user not in (None, "root", 0),
        "verifier.collect of another service": any(item.service != "main" for item in verifier.collect),
        "artifacts of another service": any(item.service not in (None, "main") for item in artifacts),
        "environment/docker-compose.yaml": "environment/docker-compose.yaml" in files,
        "tests/Dockerfile": "tests/Dockerfile" in files,
        "trajectory.json": "trajectory.json" in files,
    }  # fmt: skip
    for what, present in used.items():
        if present:
            raise UserError(f"{folder}: {what} is of Harbor but not run here: leave it out")
    for table in (machine.env, verifier.env, config.solution.env):
        for name, value in table.items():
            if "${" in VARIABLE.sub("", value):
                raise UserError(f"{folder}: {name} takes its value from the machine: give it a default")
    for place in [machine.workdir, *(item.source for item in artifacts)]:
        if place is not None and not PurePosixPath(place).is_absolute():
            raise UserError(f"{folder}: {place!r} in task.toml is not an absolute path")
    for item in artifacts:
        if _reaches_graders(item.source):
            raise UserError(
                f"{folder}: the artifact {item.source} would reach {', '.join(GRADERS)}: name the work alone"
            )
    if verifier.separate and not artifacts and _reaches_graders(machine.workdir or _workdir(folder)):
        raise UserError(
            f"{folder}: the whole root would be carried to the tests: name artifacts in task.toml, or a "
            "WORKDIR"
        )


def _reaches_graders(path: str) -> bool:
    source = PurePosixPath(path)
    return any(
        source.is_relative_to(place) or PurePosixPath(place).is_relative_to(source) for place in GRADERS
    )


def _workdir(folder: Path) -> str:
    """Of the image; a Dockerfile that cannot be read is refused when it is built, so it passes here."""
    try:
        instructions = read_dockerfile(folder / "environment")
    except ImageError:
        return "/unknown"
    return next((item.value for item in reversed(instructions) if item.kind == "WORKDIR"), "/")


def _digest(folder: Path, files: dict[str, os.stat_result]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        content = (folder / name).read_bytes()
        executable = bool(files[name].st_mode & stat.S_IXUSR)
        digest.update(f"{name}\0{executable}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()
