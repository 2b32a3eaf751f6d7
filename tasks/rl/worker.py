"""The rollout worker of a run, a process of its own: ``python -m tasks.rl.worker CONFIG``.

It lives beside the trainer and talks to it through files in the run's folder, each whole or not there:
``control.json`` (the trainer's wishes), ``engines.json`` (which engines answer), ``spool/`` (finished
groups) and ``rollouts.json`` (figures, for people and the trainer's log).
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aiohttp
from pydantic import BaseModel, ConfigDict

from environments.catalog import environments
from environments.interface import Environment, Task
from model.chat.tokenizer import Tokenizer
from pipeline.errors import UserError, run_command
from pipeline.files import write_whole
from tasks.rl.engines.client import EngineClient, Sampling
from tasks.rl.engines.pool import FILE as ENGINES
from tasks.rl.engines.watch import Watch
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.group import Spool
from tasks.rl.orchestrator import Control, Orchestrator, Service, Window
from tasks.rl.rollout import Assignment, Limits, roll_out
from tasks.rl.router import Router
from tasks.rl.trajectory import Trajectory

CONTROL, FIGURES, SPOOL = "control.json", "rollouts.json", "spool"
SECONDS_BETWEEN_FIGURES = 1.0


class ServiceConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    weight: float
    tasks: Path  # a line a task, with its mode, in the order of the curriculum
    at_once: int = 1_000_000
    turns: int = 8
    seconds: float = 600.0


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


async def work(config: WorkerConfig) -> None:
    """Roll out until the trainer says stop."""
    catalog = environments()
    services = [_service(one, catalog) for one in config.services]
    spool = Spool(config.scratch / SPOOL)
    spool.sweep()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        gateway = Gateway(
            Tokenizer.load(config.checkpoint), Router(), {}, Sampling(config.max_new_tokens),
            on_death=lambda engine, reason: print(f"{engine} is off the ring: {reason}", flush=True),
        )  # fmt: skip
        orchestrator = Orchestrator(
            services, gateway, spool, seed=config.seed, rollouts=config.rollouts_per_prompt,
            at_once=config.at_once, curriculum=config.curriculum,
        )  # fmt: skip
        client = partial(EngineClient, http=http, experts=config.record_experts)
        watch = Watch(config.scratch / ENGINES, gateway, client)
        beside = [
            asyncio.create_task(_tell(config.scratch / FIGURES, orchestrator.figures)),
            asyncio.create_task(watch.listen()),
        ]
        try:
            await orchestrator.run(lambda: watch.look() or read_control(config.scratch))
        finally:
            for task in beside:
                task.cancel()


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


def _service(config: ServiceConfig, catalog: dict[str, Environment]) -> Service:
    limits = Limits(turns=config.turns, seconds=config.seconds)
    pairs = []
    for line in config.tasks.read_text().splitlines():
        record = json.loads(line)
        pairs.append((Task.from_record(record), record["mode"]))
    if not pairs:
        raise UserError(f"service {config.name} has no task in {config.tasks}: give it some, or leave it out")

    async def play(assignment: Assignment, gateway: Gateway) -> Trajectory:
        environment = catalog[assignment.task.environment]
        return await roll_out(assignment, environment, gateway, limits)

    return Service(config.name, config.weight, pairs, play, config.at_once)


async def _tell(path: Path, figures: Callable[[], dict]) -> None:
    while True:
        write_whole(path, json.dumps({"time": time.time(), "services": figures()}))
        await asyncio.sleep(SECONDS_BETWEEN_FIGURES)


def main() -> int:
    config = WorkerConfig.model_validate_json(Path(sys.argv[1]).read_text())
    asyncio.run(work(config))
    return 0


if __name__ == "__main__":
    run_command(main)
