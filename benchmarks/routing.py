"""What consistent hashing of rollouts saves, and what it moves when engines come and go.

    python -m benchmarks.routing artifacts/tiny/sft --out benchmarks/results/routing.json

``reuse``: the same multi-turn rollouts of a real checkpoint, same seeds and so the same tokens, over two
engines in processes of their own: each rollout at the engine of its hash, each request at a random one, and
all of them at one engine, which reuses as much as can be. The engines' own counters say how many prompt
tokens were read and how many were taken from the prefix cache, which is emptied between the routers. Two
kinds: ``tasks`` are episodes of environments as the policy plays them, a few turns behind a prompt that all
share; ``files`` are sessions of many turns that each read another file, a part at a time, as agents do.

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
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp

from environments.catalog import environments, find_family
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import MODES
from model.hub import load_folder
from pipeline.errors import UserError, run_command
from tasks.rl.engines.client import EngineClient, Sampling
from tasks.rl.engines.pool import EnginePool
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.rollout import Assignment, Limits, roll_out
from tasks.rl.router import Router
from tasks.rl.trajectory import Segment

COUNTERS = {"read": "glm5_engine_prompt_tokens", "reused": "glm5_engine_cached_tokens"}
ENGINES = range(2, 9)
ROLLOUTS, UNDER_WAY = 20_000, 400
ROLLOUTS_OF_A_TASK = 4
SESSIONS, TURNS, PART = 24, 7, 160  # files; parts of each; characters of a part
FILES = Path(json.__file__).parents[1]  # the standard library

Workload = Callable[[Gateway], Awaitable[Sequence[list[Segment]]]]


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
    parser.add_argument("--families", nargs="+", default=["tools/chain"])
    parser.add_argument("--tasks", type=int, default=8, help="of each family (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/routing.json"))
    options = parser.parse_args()
    run_command(lambda: compare(options))


def compare(options: argparse.Namespace) -> int:
    if not (options.checkpoint / "config.json").exists():
        raise UserError(f"{options.checkpoint} is no checkpoint folder: name that of a stage, such as sft")
    workloads: dict[str, Workload] = {
        "tasks": lambda gateway: play_tasks(gateway, options.families, options.tasks),
        "files": read_files,
    }
    result = {
        "date": date.today().isoformat(), "families": options.families,
        "reuse": reuse(options.checkpoint, workloads), "moved": moved(), "balance": balance(),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


async def play_tasks(gateway: Gateway, families: Sequence[str], tasks: int) -> list[list[Segment]]:
    catalog, running = environments(), []
    for name in families:
        environment, family = find_family(catalog, name)
        for seed in range(tasks):
            task, group = environment.make_task(family, seed), f"{name}/{seed}"
            for number in range(ROLLOUTS_OF_A_TASK):
                one = Assignment(f"{group}/{number}", group, task, "interleaved", 1000 * seed + number)
                running.append(roll_out(one, environment, gateway, Limits()))
    return [trajectory.segments for trajectory in await asyncio.gather(*running)]


async def read_files(gateway: Gateway) -> list[list[Segment]]:
    files = [path for path in sorted(FILES.glob("*.py")) if path.stat().st_size > TURNS * PART][:SESSIONS]
    return await asyncio.gather(*(read_file(gateway, number, path) for number, path in enumerate(files)))


async def read_file(gateway: Gateway, number: int, path: Path) -> list[Segment]:
    name, text = f"file-{number}", path.read_text()
    gateway.open(name, number)
    messages = [{"role": "user", "content": f"Read {path.name}, a part at a time."}]
    for turn in range(TURNS):
        reply = await gateway.chat(name, messages, None, MODES["off"], most=16)
        part = text[turn * PART : (turn + 1) * PART]
        messages += [reply.message, {"role": "user", "content": part}]
    return gateway.close(name).segments


def reuse(checkpoint: Path, workloads: dict[str, Workload]) -> dict[str, Any]:
    """Prompt tokens that engines read and took from their caches, by workload and router."""
    model, tokenizer, version, result = load_folder(checkpoint), Tokenizer.load(checkpoint), 0, {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        EnginePool(checkpoint, count=2, scratch=Path(scratch), threads=1) as pool,
    ):
        for name, workload in workloads.items():
            found, told = {}, {}
            for kind, router in {"hashed": Router(), "random": AtRandom(), "one engine": Router()}.items():
                version += 1
                pool.push(model, version)  # the same weights: what engines have read is forgotten
                for engine in list(pool.addresses)[: 1 if kind == "one engine" else None]:
                    router.join(engine)
                found[kind], told[kind] = asyncio.run(measure(pool.addresses, tokenizer, router, workload))
            result[name] = told | summary(found, told)
    return result


async def measure(
    addresses: dict[str, str], tokenizer: Tokenizer, router: Router, workload: Workload
) -> tuple[Sequence[list[Segment]], dict[str, float]]:
    async with aiohttp.ClientSession() as http:
        clients = {name: EngineClient(address, http) for name, address in addresses.items()}
        before = await counted(clients)
        found = await workload(Gateway(tokenizer, router, clients, Sampling(96)))
        after = await counted(clients)
    told: dict[str, float] = {name: after[name] - before[name] for name in COUNTERS}
    return found, told | {"reused_share": told["reused"] / (told["read"] + told["reused"])}


async def counted(clients: dict[str, EngineClient]) -> dict[str, int]:
    """The counters of all engines together."""
    figures = await asyncio.gather(*(client.figures() for client in clients.values()))
    return {name: int(sum(each[metric] for each in figures)) for name, metric in COUNTERS.items()}


def summary(found: dict[str, Sequence[list[Segment]]], told: dict[str, dict]) -> dict[str, float]:
    hashed, scattered = ([ids_of(one) for one in found[kind]] for kind in ("hashed", "random"))
    return {
        "rollouts": len(hashed),
        "turns_mean": sum(len(s.turns) for one in found["hashed"] for s in one) / len(hashed),
        "rollouts_with_equal_tokens": sum(map(list.__eq__, hashed, scattered)) / len(hashed),
        "prefill_saved_against_random": 1 - told["hashed"]["read"] / told["random"]["read"],
        "prefill_over_one_engine": told["hashed"]["read"] / told["one engine"]["read"],
    }


def ids_of(segments: list[Segment]) -> list[list[int]]:
    return [segment.ids for segment in segments]


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
