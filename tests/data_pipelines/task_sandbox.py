"""Play agents in real sandboxes on task folders, with as little as that takes."""

import asyncio
from pathlib import Path

from environments.harbor.solution import solution_command
from environments.harbor.task import load_task
from environments.harbor.verifier import make_folders, verify
from environments.sandbox.interface import Backend

SOLVE = object()  # play the task's own solution


async def reward_of(backend: Backend, folder: Path, *actions) -> float | None:
    """The reward after commands (or ``SOLVE``, or (path, content) to write) in one sandbox of a task."""
    task = load_task(folder)
    image = await backend.build(task.environment)
    async with await backend.start(image, task.limits) as sandbox:
        await make_folders(sandbox)
        for action in actions:
            if isinstance(action, tuple):
                await sandbox.write(action[0], action[1], 0o755)
            else:
                command = solution_command(task) if action is SOLVE else action
                result = await sandbox.run(command, seconds=60)
                assert result.returncode == 0 or action is not SOLVE, result.output
        return (await verify(task, sandbox, image, backend)).reward


async def file_after_solution(backend: Backend, folder: Path, path: str) -> bytes:
    task = load_task(folder)
    image = await backend.build(task.environment)
    async with await backend.start(image, task.limits) as sandbox:
        result = await sandbox.run(solution_command(task), seconds=60)
        assert result.returncode == 0, result.output
        return await sandbox.read(path)


def rewards(backend: Backend, folder: Path, *plays: tuple) -> list[float | None]:
    """The reward of each play, all at once."""

    async def all_of_them():
        return await asyncio.gather(*(reward_of(backend, folder, *actions) for actions in plays))

    return asyncio.run(all_of_them())
