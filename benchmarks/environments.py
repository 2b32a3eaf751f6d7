"""How fast every environment makes tasks and judges them, on one core.

    python -m benchmarks.environments

A row an environment: tasks made a second, then oracle episodes from reset to verdict a second (64 at once),
each over all its families, and the slowest family of each. Programs run in limited child processes here.
Writes ``benchmarks/results/environments.json`` when all were measured.
"""

import argparse
import asyncio
import json
import os
import platform
import time
from datetime import date
from pathlib import Path

from environments.catalog import environments
from environments.interface import MODES, Environment, Task, play
from pipeline.stage import git_commit

RESULT = Path("benchmarks/results/environments.json")
AT_ONCE = 64
SOURCE = "\n".join(
    f"def handler_{i}(item, size_{i % 7}):\n    return item" for i in range(150)
)  # for look-ups


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=500, help="made of each family")
    parser.add_argument("--episodes", type=int, default=64, help="played of each family")
    parser.add_argument("--only", nargs="*", help="names of environments; all without it")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = {}
    print("environment      families   tasks/s   slowest family        episodes/s   slowest family")
    for name, environment in environments([SOURCE]).items():
        if arguments.only and name not in arguments.only:
            continue
        row = rows[name] = measure(environment, arguments.tasks, arguments.episodes)
        making, playing = row["slowest_making"], row["slowest_playing"]
        print(
            f"{name:16}{row['families']:9}{row['tasks_per_s']:10.0f}{making[0]:>16}{making[1]:8.0f}"
            f"{row['episodes_per_s']:12.0f}{playing[0]:>16}{playing[1]:8.0f}",
            flush=True,
        )
    found = {
        "date": str(date.today()), "commit": git_commit(), "machine": platform.machine(), "cores": 1,
        "python": platform.python_version(), "environments": rows,
    }  # fmt: skip
    if not arguments.only:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")


def measure(environment: Environment, count: int, episodes: int) -> dict:
    """Rates over all families, of training tasks where a family has them."""
    made, played = {}, {}
    for family in (*environment.families, *environment.evaluation_only):
        heldout = family in environment.evaluation_only
        environment.make_task(family, 0, heldout)  # tables are read once
        started = time.perf_counter()
        tasks = [environment.make_task(family, seed, heldout) for seed in range(count)]
        made[family] = count / (time.perf_counter() - started)
        asyncio.run(_play(environment, tasks[:1]))  # children that serve many episodes are started
        started = time.perf_counter()
        asyncio.run(_play(environment, tasks[:episodes]))
        played[family] = min(episodes, count) / (time.perf_counter() - started)
    return {
        "families": len(made),
        "tasks_per_s": _mean(made), "slowest_making": min(made.items(), key=lambda item: item[1]),
        "episodes_per_s": _mean(played), "slowest_playing": min(played.items(), key=lambda item: item[1]),
    }  # fmt: skip


def _mean(rates: dict[str, float]) -> float:
    """Of as many from each family: the rates' harmonic mean."""
    return len(rates) / sum(1 / rate for rate in rates.values())


async def _play(environment: Environment, tasks: list[Task]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, mode: str) -> None:
        async with room:
            _, verdict = await play(environment, task, environment.oracle(task, mode))
        assert verdict.reward == 1.0, (task.id, verdict)

    await asyncio.gather(*(one(task, MODES[number % len(MODES)]) for number, task in enumerate(tasks)))


if __name__ == "__main__":
    main()
