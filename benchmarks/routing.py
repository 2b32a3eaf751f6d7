"""What consistent hashing of rollouts saves, and what it moves when engines come and go.

    python -m benchmarks.routing artifacts/tiny/sft --out benchmarks/results/routing.json

``reuse``: the same multi-turn rollouts of a real checkpoint, same seeds and so the same tokens, over two
engines in processes of their own: each rollout at the engine of its hash, each request at a random one, and
all of them at one engine, which reuses as much as can be. The engines' own counters say how many prompt
tokens were read and how many were taken from the prefix cache, which is emptied between the routers.

``moved``: the share of 20,000 rollouts that have another engine when one joins or leaves, for N = 2 to 8
engines, by hash alone and among 400 that are under way. ``balance``: the load of the fullest engine against
the mean, by hash alone and with bounded loads.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp

from environments.catalog import environments, find_family
from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from pipeline.errors import UserError, run_command
from tasks.rl.engines.client import EngineClient, Sampling
from tasks.rl.engines.pool import EnginePool
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.rollout import Assignment, Limits, roll_out
from tasks.rl.router import Router
from tasks.rl.trajectory import Trajectory

COUNTERS = {"read": "glm5_engine_prompt_tokens", "reused": "glm5_engine_cached_tokens"}
ENGINES = range(2, 9)
ROLLOUTS, UNDER_WAY = 20_000, 400


class AtRandom(Router):
    """Every request at another engine, as a load balancer that knows nothing of sessions does it."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self._rng = random.Random(seed)

    def route(self, rollout: str) -> str:
        return self._rng.choice(self.engines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="a trained one: its rollouts have several turns")
    parser.add_argument("--families", nargs="+", default=["tools/chain", "dialogue/next"])
    parser.add_argument("--tasks", type=int, default=12, help="of each family (default: 12)")
    parser.add_argument("--rollouts", type=int, default=4, help="of each task (default: 4)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/routing.json"))
    options = parser.parse_args()
    run_command(lambda: compare(options))


def compare(options: argparse.Namespace) -> int:
    if not (options.checkpoint / "config.json").exists():
        raise UserError(f"{options.checkpoint} is no checkpoint folder: name that of a stage, such as sft")
    assignments = list(make_assignments(options.families, options.tasks, options.rollouts))
    result = {
        "date": date.today().isoformat(), "families": options.families, "rollouts": len(assignments),
        "reuse": reuse(options.checkpoint, assignments), "moved": moved(), "balance": balance(),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


def make_assignments(families: Iterable[str], tasks: int, rollouts: int) -> Iterable[Assignment]:
    catalog = environments()
    for name in families:
        environment, family = find_family(catalog, name)
        for seed in range(tasks):
            task = environment.make_task(family, seed)
            for number in range(rollouts):
                group = f"{name}/{seed}"
                yield Assignment(f"{group}/{number}", group, task, "interleaved", 1000 * seed + number)


def reuse(checkpoint: Path, assignments: list[Assignment]) -> dict[str, Any]:
    """Prompt tokens that engines read and took from their caches, by router."""
    model, found, told = load_folder(checkpoint), {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        with EnginePool(checkpoint, count=2, scratch=Path(scratch), threads=1) as pool:
            names = list(pool.addresses)
            routers = {"hashed": (Router(), names), "random": (AtRandom(), names),
                       "one engine": (Router(), names[:1])}  # fmt: skip
            for version, (kind, (router, engines)) in enumerate(routers.items(), start=1):
                pool.push(model, version)  # the same weights: what engines have read is forgotten
                for engine in engines:
                    router.join(engine)
                found[kind], told[kind] = asyncio.run(play(checkpoint, pool.addresses, router, assignments))
    prompt = told["hashed"]["read"] + told["hashed"]["reused"]
    same = sum(ids_of(a) == ids_of(b) for a, b in zip(found["hashed"], found["random"], strict=True))
    return {
        **told,
        "prompt_tokens": prompt,
        "turns_mean": sum(len(s.turns) for t in found["hashed"] for s in t.segments) / len(assignments),
        "prefill_saved_against_random": 1 - told["hashed"]["read"] / told["random"]["read"],
        "rollouts_with_equal_tokens": same / len(assignments),
    }


async def play(
    checkpoint: Path, addresses: dict[str, str], router: Router, assignments: list[Assignment]
) -> tuple[list[Trajectory], dict[str, float]]:
    catalog, limits = environments(), Limits(turns=8)
    async with aiohttp.ClientSession() as http:
        clients = {name: EngineClient(address, http) for name, address in addresses.items()}
        gateway = Gateway(Tokenizer.load(checkpoint), router, clients, Sampling(96))
        before, started = await counted(clients), time.perf_counter()
        trajectories = await asyncio.gather(
            *(roll_out(one, catalog[one.task.environment], gateway, limits) for one in assignments)
        )
        after = await counted(clients)
    told: dict[str, float] = {name: after[name] - before[name] for name in COUNTERS}
    told["reused_share"] = told["reused"] / (told["read"] + told["reused"])
    return trajectories, told | {"seconds": time.perf_counter() - started}


async def counted(clients: dict[str, EngineClient]) -> dict[str, int]:
    """The counters of all engines together."""
    figures = await asyncio.gather(*(client.figures() for client in clients.values()))
    return {name: int(sum(each[metric] for each in figures)) for name, metric in COUNTERS.items()}


def ids_of(trajectory: Trajectory) -> list[list[int]]:
    return [segment.ids for segment in trajectory.segments]


def moved() -> list[dict[str, float]]:
    """What changes its engine when one joins N, and when one of N leaves."""
    rows = []
    for count in ENGINES:
        router = ring(count)
        before = owners(router)
        router.join("newcomer")
        joined = share_that_differs(before, owners(router))
        router.leave("newcomer")
        leaves = [share_without(router, engine, before) for engine in router.engines]
        running = [f"running-{number}" for number in range(UNDER_WAY)]
        placed = {rollout: router.route(rollout) for rollout in running}
        router.join("newcomer")
        while_running = share_that_differs(placed, {one: router.route(one) for one in running})
        router.leave("newcomer")
        router.leave("engine-0")
        after = share_that_differs(placed, {one: router.route(one) for one in running})
        rows.append(
            {
                "engines": count, "joins": joined, "joins_limit": 1 / (count + 1) + 0.05,
                "leaves_most": max(leaves), "leaves_limit": 1 / count + 0.05,
                "under_way_joins": while_running, "under_way_leaves": after,
            }
        )  # fmt: skip
    return rows


def share_without(router: Router, engine: str, before: dict[str, str]) -> float:
    router.leave(engine)
    share = share_that_differs(before, owners(router))
    router.join(engine)
    return share


def balance() -> list[dict[str, float]]:
    """Load of the fullest engine over the mean."""
    rows = []
    for count in ENGINES:
        router = ring(count)
        by_hash = list(owners(router).values())
        for number in range(UNDER_WAY):
            router.route(f"running-{number}")
        rows.append(
            {
                "engines": count,
                "by_hash": max(by_hash.count(engine) for engine in router.engines) * count / ROLLOUTS,
                "bounded": max(router.load().values()) * count / UNDER_WAY,
            }
        )
    return rows


def ring(count: int) -> Router:
    router = Router()
    for number in range(count):
        router.join(f"engine-{number}")
    return router


def owners(router: Router) -> dict[str, str]:
    return {name: router.owner(name) for name in (f"rollout-{number}" for number in range(ROLLOUTS))}


def share_that_differs(one: dict[str, str], other: dict[str, str]) -> float:
    return sum(one[name] != other[name] for name in one) / len(one)


if __name__ == "__main__":
    sys.exit(main())
