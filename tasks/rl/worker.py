"""The rollout worker of a run, a process of its own: ``python -m tasks.rl.worker CONFIG``.

It lives beside the trainer and talks to it through files in the run's folder, each whole or not there:
``control.json`` (the trainer's wishes), ``engines.json`` (which engines answer), ``spool/`` (finished
groups), ``rollouts.json`` (figures, for people and the trainer's log) and ``memory.json`` (what a worker that
takes its place goes on from: counts, and the tasks that were given up).
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import aiohttp
from pydantic import BaseModel, ConfigDict

from environments.interface import Environment, Task
from model.chat.tokenizer import Tokenizer
from pipeline.errors import UserError, run_command
from pipeline.files import write_whole
from pipeline.recipe.rl import Folding
from tasks.rl.catalog import CatalogConfig, open_catalog
from tasks.rl.engines.client import EngineClient, Sampling
from tasks.rl.engines.pool import FILE as ENGINES
from tasks.rl.engines.watch import Watch
from tasks.rl.gateway.facade import Facade
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.gateway.program import roll_out_program
from tasks.rl.group import Spool
from tasks.rl.orchestrator import Control, Orchestrator, Window
from tasks.rl.rewards.combine import Rewards, open_rewards
from tasks.rl.rollout import Assignment, Limits, roll_out
from tasks.rl.router import Router
from tasks.rl.service import Service
from tasks.rl.trajectory import Trajectory

CONTROL, FIGURES, MEMORY, SPOOL = "control.json", "rollouts.json", "memory.json", "spool"
SECONDS_BETWEEN_FIGURES = 1.0


class ServiceConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    weight: float
    tasks: Path  # a line a task, with its mode, in the order of the curriculum
    at_once: int = 1_000_000
    turns: int = 8
    seconds: float = 600.0
    folding: Folding | None = None
    rewards: Path | None = None  # a RewardsConfig: what a rollout is worth beside its environment's verdict
    program: list[str] = []  # the command of an agent that is a program of its own, see gateway/program.py


class WorkerConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    scratch: Path
    checkpoint: Path  # for its tokenizer
    services: list[ServiceConfig]
    seed: int
    rollouts_per_prompt: int
    at_once: int
    max_new_tokens: int
    record_experts: bool = False
    curriculum: list[Window] = []
    catalog: CatalogConfig = CatalogConfig()


async def work(config: WorkerConfig) -> None:
    """Roll out until the trainer says stop."""
    catalog = open_catalog(config.catalog)
    spool = Spool(config.scratch / SPOOL)
    spool.sweep()
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        tokenizer = Tokenizer.load(config.checkpoint)
        rewards = {
            path: open_rewards(path, tokenizer, catalog, http)
            for path in {one.rewards for one in config.services if one.rewards is not None}
        }
        gateway = Gateway(
            tokenizer, Router(), {}, Sampling(config.max_new_tokens),
            on_death=lambda engine, reason: print(f"{engine} is off the ring: {reason}", flush=True),
        )  # fmt: skip
        facade = await stack.enter_async_context(Facade(gateway))
        services = [_service(one, catalog, rewards.get(one.rewards), facade) for one in config.services]
        _remember(config.scratch / MEMORY, services)
        orchestrator = Orchestrator(
            services, gateway, spool, seed=config.seed, rollouts=config.rollouts_per_prompt,
            at_once=config.at_once, curriculum=config.curriculum,
        )  # fmt: skip
        client = partial(EngineClient, http=http, experts=config.record_experts)
        watch = Watch(config.scratch / ENGINES, gateway, client)
        beside = [
            asyncio.create_task(_keep_telling(config.scratch, orchestrator, gateway, services)),
            asyncio.create_task(watch.listen()),
        ]
        try:
            await orchestrator.run(lambda: watch.look() or read_control(config.scratch))
        finally:
            for task in beside:
                task.cancel()
            _tell(config.scratch, orchestrator, gateway, services)


def read_control(scratch: Path) -> Control:
    """What the trainer wants. Nothing yet: no group may begin."""
    try:
        found = json.loads((scratch / CONTROL).read_text())
    except FileNotFoundError:
        return Control(admit=0)
    return Control(**{**found, "done": frozenset(found.get("done", ()))})


def write_control(scratch: Path, control: Control) -> None:
    record = {**control.__dict__, "done": sorted(control.done)}
    write_whole(scratch / CONTROL, json.dumps(record))


def _service(
    config: ServiceConfig, catalog: dict[str, Environment], rewards: Rewards | None, facade: Facade
) -> Service:
    limits = Limits(turns=config.turns, seconds=config.seconds, folding=config.folding)
    pairs = []
    for line in config.tasks.read_text().splitlines():
        record = json.loads(line)
        pairs.append((Task.from_record(record), record["mode"]))
    if not pairs:
        raise UserError(f"service {config.name} has no task in {config.tasks}: give it some, or leave it out")

    async def play(assignment: Assignment, gateway: Gateway) -> Trajectory:
        if config.program:
            trajectory = await roll_out_program(assignment, config.program, facade, limits)
        else:
            environment = catalog[assignment.task.environment]
            trajectory = await roll_out(assignment, environment, gateway, limits)
        if rewards is not None:
            await rewards.judge(assignment.task, assignment.mode, trajectory)
        return trajectory

    return Service(config.name, config.weight, pairs, play, config.at_once)


def _remember(memory: Path, services: Sequence[Service]) -> None:
    if memory.exists():
        found = json.loads(memory.read_text())
        for service in services:
            if service.name in found:
                service.remember(found[service.name])


async def _keep_telling(
    scratch: Path, orchestrator: Orchestrator, gateway: Gateway, services: Sequence[Service]
) -> None:
    while True:
        _tell(scratch, orchestrator, gateway, services)
        await asyncio.sleep(SECONDS_BETWEEN_FIGURES)


def _tell(scratch: Path, orchestrator: Orchestrator, gateway: Gateway, services: Sequence[Service]) -> None:
    figures = {
        "time": time.time(), "sessions": gateway.sessions, "engines": gateway.router.load(),
        "tokens": dict(gateway.counts), "services": orchestrator.figures(),
    }  # fmt: skip
    write_whole(scratch / FIGURES, json.dumps(figures))
    write_whole(scratch / MEMORY, json.dumps({service.name: service.memory() for service in services}))


async def _work_until_told(config: WorkerConfig) -> None:
    """A SIGTERM ends the episodes first, with what they hold: sandboxes outlive a process that just dies."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work(config)


def main() -> int:
    config = WorkerConfig.model_validate_json(Path(sys.argv[1]).read_text())
    asyncio.run(_work_until_told(config))
    return 0


if __name__ == "__main__":
    run_command(main)
