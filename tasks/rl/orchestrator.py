"""Many rollouts at once, of several services, a group at a time, finished groups into the spool.

A service is a kind of task with its own way to roll out and to reward. Group number n is always the same task
with the same seeds, drawn from (seed, n) alone, or another where that task was given up. So a worker that was
killed goes on where it was: what is in the spool or was taken from it is done, the rest is rolled out anew.
``Control`` says up to which number groups may begin; that bounds how far rollouts run ahead of the weights
(staleness is bounded at admission, not by dropping).

Services have their weights' shares of the numbers, and a run trains on every number once, so what is trained
keeps these shares however long a kind takes.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from environments.interface import Mode, Task
from pipeline.errors import UserError
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.group import Group, Spool
from tasks.rl.rollout import Assignment
from tasks.rl.router import NoEngine
from tasks.rl.service import Service
from tasks.rl.trajectory import Trajectory

SECONDS_BETWEEN_LOOKS = 0.02
SECONDS_WITHOUT_ENGINE = 0.2
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Window:
    """A step of the curriculum: groups below ``until`` take tasks from this part of a service's list."""

    until: int
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Control:
    """What the trainer wants: groups below ``admit`` may begin; those in ``done`` and below ``done_below``
    are done.
    """

    admit: int
    done_below: int = 0
    done: frozenset[int] = frozenset()
    stop: bool = False


class Orchestrator:
    def __init__(
        self,
        services: Sequence[Service],
        gateway: Gateway,
        spool: Spool,
        *,
        seed: int,
        rollouts: int,
        at_once: int,
        curriculum: Sequence[Window] = (),
    ):
        """``rollouts`` of a prompt make a group; ``at_once`` of all services. ``curriculum``: its steps in
        order, after the last of them all tasks.
        """
        self._curriculum = tuple(curriculum)
        self._services, self._gateway, self._spool = services, gateway, spool
        self._seed, self._rollouts = seed, rollouts
        self._slots = asyncio.Semaphore(at_once)
        self._running: dict[int, asyncio.Task] = {}
        self._finished: set[int] = set()
        self._offset = random.Random(f"{seed}/services").random()

    async def run(self, control: Callable[[], Control]) -> None:
        """Roll out until ``control`` says stop. Raises what a rollout raises beside its environment's
        failures.
        """
        self._finished = set(self._spool.indices())
        try:
            while not (wanted := control()).stop:
                self._admit(wanted)
                self._collect()
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Of each service what ``Service.figures`` tells, its share of the groups and what it should be."""
        weights = sum(service.weight for service in self._services)
        groups = sum(service.counts["groups"] + service.counts["running"] for service in self._services)
        return {
            service.name: {
                **service.figures(),
                "share": (service.counts["groups"] + service.counts["running"]) / max(groups, 1),
                "share_wanted": service.weight / weights,
            }
            for service in self._services
        }

    def _admit(self, wanted: Control) -> None:
        self._finished = {index for index in self._finished if index >= wanted.done_below}
        for index in range(wanted.done_below, wanted.admit):
            if index not in self._running and index not in wanted.done and index not in self._finished:
                self._running[index] = asyncio.create_task(self._group(index))

    def _collect(self) -> None:
        for index, task in list(self._running.items()):
            if task.done():
                del self._running[index]
                task.result()
                self._finished.add(index)

    async def _group(self, index: int) -> None:
        rng = random.Random(f"{self._seed}/{index}")
        service = self._service(index)
        task, mode = self._task(service, index, rng)
        assignments = [
            Assignment(f"group-{index}/{number}", f"group-{index}", task, mode, rng.randrange(2**62))
            for number in range(self._rollouts)
        ]
        service.counts["running"] += 1
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._rollout(service, one)) for one in assignments]
        finally:
            service.counts["running"] -= 1
        trajectories = [task.result() for task in running]
        service.take(trajectories)
        await asyncio.to_thread(self._spool.put, Group(index, trajectories))

    def _service(self, index: int) -> Service:
        """By the weights of those that have tasks left. Multiples of the golden ratio fill [0, 1) evenly, so
        that any few numbers in a row hold the shares, where independent draws would by chance alone.
        """
        there = [service for service in self._services if service.weight and service.left]
        if not there:
            raise UserError("every task was given up: see in the warnings before why none was judged")
        place = (self._offset + index * GOLDEN) % 1 * sum(service.weight for service in there)
        for service in there[:-1]:
            place -= service.weight
            if place < 0:
                return service
        return there[-1]

    def _task(self, service: Service, index: int, rng: random.Random) -> tuple[Task, Mode]:
        """One of the curriculum's part of the service's tasks; another where that one was given up."""
        low, high = next(((w.low, w.high) for w in self._curriculum if index < w.until), (0.0, 1.0))
        task, mode = _drawn(service.tasks, rng, low, high)
        return _drawn(service.left, rng, low, high) if task.id in service.given_up else (task, mode)

    async def _rollout(self, service: Service, assignment: Assignment) -> Trajectory:
        async with service.slots, self._slots:
            service.counts["rollouts_running"] += 1
            try:
                return await self._with_engine(service, assignment)
            finally:
                service.counts["rollouts_running"] -= 1

    async def _with_engine(self, service: Service, assignment: Assignment) -> Trajectory:
        while True:
            try:
                return await service.roll_out(assignment, self._gateway)
            except NoEngine:  # all died at once: the trainer starts them again
                await asyncio.sleep(SECONDS_WITHOUT_ENGINE)


def _drawn(
    tasks: Sequence[tuple[Task, Mode]], rng: random.Random, low: float, high: float
) -> tuple[Task, Mode]:
    """One of the part of a list from ``low`` to ``high``, which is never empty."""
    first = min(int(low * len(tasks)), len(tasks) - 1)
    return tasks[rng.randrange(first, max(first + 1, int(high * len(tasks))))]
