"""A folder of Harbor tasks as an environment: the same interface as every other one."""

import hashlib
import random
from pathlib import Path

from environments.episode import answer, call_message
from environments.harbor.episode import TOOLS, HarborEpisode, stored_task
from environments.harbor.solution import solution_command, solution_length, solution_steps
from environments.harbor.task import HarborTask, load_tasks
from environments.interface import HELDOUT_ONE_IN, Draft, Environment, Message, Mode, Task
from environments.sandbox.interface import Backend
from pipeline.errors import UserError

PROMPT = """\
{instruction}

You have a shell in a sandbox without network. Each call of bash runs one command in a new shell{workdir};
files stay, variables and the current folder do not. Call submit when the task is done.
"""


class HarborTasks(Environment):
    """The tasks below ``root``; broken folders are left out and stand in ``faults``, a sentence each.

    Whole families or projects are held out: as ``heldout`` of a task's metadata says where it is there, else
    by a hash of its ``project`` or ``family``.
    """

    def __init__(self, root: Path, backend: Backend | None = None, name: str = "terminal") -> None:
        self.root, self.name, self._backend = root, name, backend
        loaded, self.faults = load_tasks(root)
        self._tasks: dict[tuple[str, bool], list[HarborTask]] = {}
        for task in loaded:
            self._tasks.setdefault((family(task), heldout(task)), []).append(task)
        names = dict.fromkeys(name for name, _ in self._tasks)
        self.families = tuple(name for name in names if (name, False) in self._tasks)
        self.evaluation_only = tuple(name for name in names if (name, False) not in self._tasks)

    def tasks(self, heldout: bool | None = None) -> list[Task]:
        """All tasks, or those of one side of the split."""
        return [
            self._task(task, family, number, side)
            for (family, side), group in self._tasks.items()
            if heldout in (None, side)
            for number, task in enumerate(group)
        ]

    def make_task(self, family: str, seed: int, heldout: bool = False) -> Task:
        """The task of that seed: they are counted through, again and again."""
        if family not in self.families + self.evaluation_only:
            known = ", ".join(self.families + self.evaluation_only)
            raise UserError(f"environment {self.name} has no family {family!r} (known: {known})")
        group = self._tasks.get((family, heldout))
        if not group:
            side = "held-out" if heldout else "training"
            raise UserError(f"{self.name}/{family} has no {side} task below {self.root}")
        return self._task(group[seed % len(group)], family, seed, heldout)

    def draw(self, family: str, rng: random.Random) -> Draft:
        groups = [group for (name, _), group in self._tasks.items() if name == family]
        task = rng.choice([task for group in groups for task in group])
        return Draft(self._prompt(task), self._truth(task), solution_length(task), TOOLS)

    def episode(self) -> HarborEpisode:
        if self._backend is None:
            from environments.sandbox.choose import open_backend

            self._backend = open_backend()
        return HarborEpisode(self.root, self._backend)

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        loaded = stored_task(self.root, task)
        steps = None if mode == "off" else solution_steps(loaded)
        done = None if mode == "off" else "Everything is done."
        return [call_message(steps, "bash", command=solution_command(loaded)), call_message(done, "submit")]

    def mistake(self, task: Task, mode: Mode, rng: random.Random) -> Message | None:
        """A message without a call, as if there were nothing to do."""
        return answer(None if mode == "off" else "There is nothing to do.", "Done.")

    def _task(self, task: HarborTask, family: str, seed: int, heldout: bool) -> Task:
        metadata = task.config.metadata
        provenance = metadata.get("provenance") or metadata.get("source") or f"Harbor task {task.name}"
        return Task(
            id=f"{self.name}/{family}/{task.folder.name}",
            environment=self.name,
            family=family,
            messages=self._prompt(task),
            tools=TOOLS,
            truth=self._truth(task),
            difficulty=solution_length(task),
            seed=seed,
            heldout=heldout,
            provenance=str(provenance),
            licence=str(metadata.get("licence") or metadata.get("license") or "unknown"),
        )

    def _prompt(self, task: HarborTask) -> tuple[Message, ...]:
        workdir = task.config.environment.workdir
        place = f" in {workdir}" if workdir else ""
        return ({"role": "user", "content": PROMPT.format(instruction=task.instruction, workdir=place)},)

    def _truth(self, task: HarborTask) -> dict[str, str]:
        folder = task.folder.relative_to(self.root.resolve()).as_posix()
        return {"folder": folder, "digest": task.digest}


def family(task: HarborTask) -> str:
    metadata = task.config.metadata
    return str(metadata.get("family") or metadata.get("category") or "task")


def heldout(task: HarborTask) -> bool:
    metadata = task.config.metadata
    if isinstance(metadata.get("heldout"), bool):
        return metadata["heldout"]
    group = str(metadata.get("project") or family(task))
    return int(hashlib.sha256(group.encode()).hexdigest()[:8], 16) % HELDOUT_ONE_IN == 0
