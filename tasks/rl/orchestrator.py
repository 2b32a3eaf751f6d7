"""Many rollouts at once, of several services, a group at a time, finished groups into the spool.

A service is a kind of task with its own way to roll out and to reward. Group number n is always the same task
with the same seeds, drawn from (seed, n) alone, so a worker that was killed goes on where it was: what is in
the spool or was taken from it is done, the rest is rolled out anew. ``Control`` says up to which number
groups may begin; that bounds how far rollouts run ahead of the weights (staleness is bounded at admission,
not by dropping).
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from environments.interface import Mode, Task
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.group import Group, Spool
from tasks.rl.rollout import Assignment
from tasks.rl.router import NoEngine
from tasks.rl.trajectory import Trajectory, mean_reward

SECONDS_BETWEEN_LOOKS = 0.02
SECONDS_WITHOUT_ENGINE = 0.2
RollOut = Callable[[Assignment, Gateway], Awaitable[Trajectory]]


@dataclass
class Service:
    """``weight``: its share of the groups. ``at_once``: rollouts, so that a slow kind leaves room for
    others.
    """

    name: str
    weight: float
    tasks: Sequence[tuple[Task, Mode]]  # in the order of the curriculum
    roll_out: RollOut
    at_once: int = 1_000_000
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self):
        self.slots = asyncio.Semaphore(self.at_once)


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
        self._started = time.monotonic()
        self.counts: dict[str, Counter] = {service.name: Counter() for service in services}

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

    def figures(self) -> dict[str, dict[str, float]]:
        """Of each service: groups and rollouts, failures, tokens, mean reward, tokens a second."""
        seconds = time.monotonic() - self._started
        return {
            name: {
                **counts,
                "reward_mean": counts["reward"] / max(counts["rewarded"], 1),
                "tokens_per_s": counts["tokens"] / seconds,
            }
            for name, counts in self.counts.items()
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
        service = rng.choices(self._services, [service.weight for service in self._services])[0]
        low, high = next(((w.low, w.high) for w in self._curriculum if index < w.until), (0.0, 1.0))
        task, mode = service.tasks[_place(rng, len(service.tasks), low, high)]
        assignments = [
            Assignment(f"group-{index}/{number}", f"group-{index}", task, mode, rng.randrange(2**62))
            for number in range(self._rollouts)
        ]
        counts = self.counts[service.name]
        counts["running"] += 1
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._rollout(service, one)) for one in assignments]
        finally:
            counts["running"] -= 1
        trajectories = [task.result() for task in running]
        self._count(counts, trajectories)
        await asyncio.to_thread(self._spool.put, Group(index, trajectories))

    async def _rollout(self, service: Service, assignment: Assignment) -> Trajectory:
        async with service.slots, self._slots:
            while True:
                try:
                    return await service.roll_out(assignment, self._gateway)
                except NoEngine:  # all died at once: the trainer starts them again
                    await asyncio.sleep(SECONDS_WITHOUT_ENGINE)

    def _count(self, counts: Counter, trajectories: list[Trajectory]) -> None:
        rewarded = [t for t in trajectories if t.reward is not None]
        counts["groups"] += 1
        counts["rollouts"] += len(trajectories)
        counts["failed"] += len(trajectories) - len(rewarded)
        counts["rewarded"] += len(rewarded)
        counts["reward"] += (mean_reward(rewarded) or 0.0) * len(rewarded)
        counts["tokens"] += sum(t.tokens for t in trajectories)
        counts["seconds"] += sum(t.seconds for t in trajectories)


def _place(rng: random.Random, tasks: int, low: float, high: float) -> int:
    """A task's number inside a part of the list."""
    first = min(int(low * tasks), tasks - 1)
    return rng.randrange(first, max(first + 1, int(high * tasks)))
