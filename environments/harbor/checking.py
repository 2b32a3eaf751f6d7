"""``glm5 env validate``: the tasks of a folder or of an archive, each validated and told of."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from environments.attempt import harmless
from environments.harbor.archive import unpack_task
from environments.harbor.validation import Report, validate
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Backend, SandboxError
from pipeline.errors import UserError


def check(path: Path, backend: str | None, repeats: int, as_json: bool) -> int:
    """An exit status, 0 when every task at ``path`` is sound. A broken one does not keep the others from
    being checked.
    """
    if repeats < 1:
        raise UserError(f"--repeats {repeats} is less than 1")
    with _unpacked(path) as folder:
        folders = _task_folders(folder)
        if not folders:
            raise UserError(f"{path} holds no task: a task is a folder with task.toml")
        sound = _count_sound(folders, open_backend(backend), repeats, as_json)
    if folders != [folder] and not as_json:
        print(f"{sound} of {len(folders)} tasks are sound")
    return int(sound < len(folders))


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """The folder at ``path``, or one with what the archive there holds, for a while."""
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise UserError(f"there is no {path}: name a task's folder, one of tasks, or an archive of either")
    with tempfile.TemporaryDirectory(prefix="tasks-") as folder:
        unpack_task(path, Path(folder))
        yield _without_wrapping(Path(folder))


def _without_wrapping(folder: Path) -> Path:
    """Archives of a folder hold that folder: its content is meant."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _task_folders(folder: Path) -> list[Path]:
    if (folder / "task.toml").exists():
        return [folder]
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _count_sound(folders: list[Path], backend: Backend, repeats: int, as_json: bool) -> int:
    """Each is told of when it is known."""
    sound = 0
    for folder in folders:
        try:
            report = asyncio.run(validate(folder, backend, repeats))
        except (SandboxError, UserError, ValueError, ArithmeticError, OSError) as error:
            print(harmless(f"{folder.name}: not checked: {' '.join(str(error).split())}"), flush=True)
            continue
        sound += report.sound
        told = json.dumps(json.loads(report.to_json())) if as_json else harmless(_told(report))
        print(told, flush=True)
    return sound


def _told(report: Report) -> str:
    lines = [f"{report.name}: {'sound' if report.sound else f'rejected: {report.reason}'} ({report.backend})"]
    lines += [f"  {'ok ' if line.passed else 'NO '} {line.name}: {line.evidence}" for line in report.lines]
    lines += [
        f"  {run.agent}: {'no reward' if run.reward is None else f'{run.reward:g}'} in {run.seconds:.1f} s"
        f"{f', {run.reason}' if run.reason else ''}"
        for run in report.runs
    ]
    return "\n".join(lines)
