"""Tools and look-ups that take their time: what a call waits for is drawn with a heavy tail.

The waits are those of a Pareto distribution, as of services that mostly answer at once and now and then not
for long, cut at ``MOST``. The nth episode at a task waits for the same times in every run.
"""

import asyncio
import random
from collections import Counter

from environments.interface import Message, Step, Task
from environments.lookup import Lookup, SearchEpisode
from environments.tools import ToolEpisode, Tools

LEAST, SHAPE, MOST = 0.1, 1.1, 20.0  # seconds, exponent, seconds


def seconds(rng: random.Random) -> float:
    """One call's."""
    return min(LEAST * (1 - rng.random()) ** (-1 / SHAPE), MOST)


class _Waits:
    """Before an episode of the real environment. ``played`` counts the episodes at each task."""

    def __init__(self, played: Counter):
        self._played = played

    async def reset(self, task: Task) -> list[Message]:
        self._rng = random.Random(f"{task.id}/{self._played[task.id]}")
        self._played[task.id] += 1
        return await super().reset(task)

    async def step(self, message: Message) -> Step:
        for _ in message.get("tool_calls") or []:
            await asyncio.sleep(seconds(self._rng))
        return await super().step(message)


class SlowToolEpisode(_Waits, ToolEpisode):
    pass


class SlowSearchEpisode(_Waits, SearchEpisode):
    pass


class SlowTools(Tools):
    name = "slow_tools"

    def __init__(self):
        self._played: Counter = Counter()

    def episode(self) -> SlowToolEpisode:
        return SlowToolEpisode(self._played)


class SlowLookup(Lookup):
    name = "slow_lookup"

    def __init__(self):
        super().__init__()
        self._played: Counter = Counter()

    def episode(self) -> SlowSearchEpisode:
        return SlowSearchEpisode(self._played)
