"""A kind of task that is rolled out: its share, its way to roll out and to reward, what became of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.interface import Mode, Task
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.rollout import Assignment
from tasks.rl.trajectory import Trajectory

RollOut = Callable[[Assignment, Gateway], Awaitable[Trajectory]]
FAILING_GROUPS = 2  # a task is given up after so many, if most of its rollouts had no reward
WORST = 10  # tasks that are named in the figures
RUNNING = ("running", "rollouts_running")  # groups and rollouts of this process


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
    counts: Counter = field(default_factory=Counter, init=False)
    rollouts: Counter = field(default_factory=Counter, init=False)  # by task
    failed: Counter = field(default_factory=Counter, init=False)  # of those, without a reward
    given_up: set[str] = field(default_factory=set, init=False)

    def __post_init__(self):
        self.slots = asyncio.Semaphore(self.at_once)
        self._started, self._before = time.monotonic(), Counter()

    def memory(self) -> dict[str, Any]:
        """What a worker that takes this one's place has to know."""
        counts = {key: value for key, value in self.counts.items() if key not in RUNNING}
        return {
            "counts": counts, "rollouts": self.rollouts, "failed": self.failed,
            "given_up": sorted(self.given_up),
        }  # fmt: skip

    def remember(self, memory: dict[str, Any]) -> None:
        """Go on from the ``memory`` of a worker before this one."""
        self.counts, self._before = Counter(memory["counts"]), Counter(memory["counts"])
        self.rollouts, self.failed = Counter(memory["rollouts"]), Counter(memory["failed"])
        self.given_up = set(memory["given_up"])

    @property
    def left(self) -> list[tuple[Task, Mode]]:
        """Its tasks without those that were given up."""
        return [pair for pair in self.tasks if pair[0].id not in self.given_up]

    def take(self, trajectories: Sequence[Trajectory]) -> None:
        """Count a finished group; give its task up where most of its rollouts have no reward.

        No reward says nothing about the policy, but a policy may learn to break what judges it, and an
        environment that does not judge only costs time.
        """
        task, counts = trajectories[0].task, self.counts
        without = [trajectory for trajectory in trajectories if trajectory.reward is None]
        counts["groups"] += 1
        counts["rollouts"] += len(trajectories)
        counts["failed"] += len(without)
        counts["rewarded"] += len(trajectories) - len(without)
        counts["reward"] += sum(t.reward for t in trajectories if t.reward is not None)
        counts["tokens"] += sum(t.tokens for t in trajectories)
        counts["seconds"] += sum(t.seconds for t in trajectories)
        self.rollouts[task] += len(trajectories)
        self.failed[task] += len(without)
        enough = self.rollouts[task] >= FAILING_GROUPS * len(trajectories)
        if enough and 2 * self.failed[task] > self.rollouts[task] and task not in self.given_up:
            self.given_up.add(task)
            print(
                f"warning: {task} is given up, {self.failed[task]} of its {self.rollouts[task]} rollouts had "
                f"no reward: {without[-1].reason if without else 'earlier ones failed'}",
                flush=True,
            )

    def figures(self) -> dict[str, Any]:
        """Counts, means, the speeds of this process, and the tasks whose environment failed."""
        counts, minutes = self.counts, max(time.monotonic() - self._started, 1e-3) / 60
        families: Counter = Counter()
        for task, number in self.failed.items():
            families["/".join(task.split("/")[:2])] += number
        return {
            **counts,
            "reward_mean": counts["reward"] / max(counts["rewarded"], 1),
            "seconds_mean": counts["seconds"] / max(counts["rollouts"], 1),
            "tokens_per_s": (counts["tokens"] - self._before["tokens"]) / (60 * minutes),
            "rollouts_per_min": (counts["rollouts"] - self._before["rollouts"]) / minutes,
            "failed_by_family": {name: number for name, number in families.items() if number},
            "failed_by_task": {name: number for name, number in self.failed.most_common(WORST) if number},
            "given_up": sorted(self.given_up),
        }
