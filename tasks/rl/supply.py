"""Where a trainer's rollouts come from: engines and a worker in their own processes, and the spool between.

Use::

    with Supply(...) as supply:
        supply.begin(model, version, step, done)
        while (groups := supply.ready(step, done)) is None:
            supply.look_after()
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.recipe.rl import RlSection
from tasks.rl.catalog import CatalogConfig
from tasks.rl.engines.pool import EnginePool
from tasks.rl.engines.process import Child
from tasks.rl.group import Group, Spool
from tasks.rl.orchestrator import Control, Window
from tasks.rl.worker import FIGURES, SPOOL, ServiceConfig, WorkerConfig, write_control

MOST_WORKER_STARTS = 5
LOGGED = ("share", "failed", "rollouts_running", "rollouts_per_min", "seconds_mean", "tokens_per_s")


class Supply:
    def __init__(
        self,
        section: RlSection,
        *,
        start: Path,
        scratch: Path,
        seed: int,
        services: Sequence[ServiceConfig],
        curriculum: Sequence[Window] = (),
        catalog: CatalogConfig,
    ):
        """``start``: the checkpoint that engines begin with. ``catalog``: of the environments."""
        self._section, self._scratch = section, scratch
        self._spool = Spool(scratch / SPOOL)
        rollouts = section.rollouts
        self._pool = EnginePool(
            start, count=rollouts.engines, scratch=scratch, decode=rollouts.decode,
            threads=max(1, len(os.sched_getaffinity(0)) // (rollouts.engines + bool(rollouts.ahead))),
            record_experts=rollouts.record_experts,
        )  # fmt: skip
        config = WorkerConfig(
            scratch=scratch, checkpoint=start, services=list(services), seed=seed,
            rollouts_per_prompt=rollouts.rollouts_per_prompt, at_once=rollouts.at_once,
            max_new_tokens=rollouts.max_new_tokens, record_experts=rollouts.record_experts,
            curriculum=list(curriculum), catalog=catalog,
        )  # fmt: skip
        path = scratch / "worker.json"
        path.write_text(config.model_dump_json())
        self._worker = Child(
            "the rollout worker", [sys.executable, "-m", "tasks.rl.worker", str(path)],
            scratch / "logs/worker.log", {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._worker.stop()
        self._pool.__exit__(*error)

    def begin(self, model: Transformer, version: int, step: int, done: set[int]) -> None:
        """Roll out from here on. Before the worker runs, the engines have its weights and it its limits: what
        an earlier run wrote there is of other steps. Groups of versions that a killed run was ahead of its
        checkpoint are rolled out anew, since those numbers are given to other weights now.
        """
        for index in self._spool.indices():
            group = self._spool.get_whole(index)
            if group is None:
                print(f"group {index} in {self._spool.folder} is damaged: it is rolled out anew", flush=True)
                self._spool.drop(index)
            elif group.newest > version:
                self._spool.drop(index)
        if version:
            self.push(model, version)
        self.want(step, done)
        self._worker.start()

    def push(self, model: Transformer, version: int) -> None:
        """New weights for the engines."""
        self._pool.push(model, version)

    def want(self, step: int, done: set[int]) -> None:
        """Tell the worker how far it may go while this step is trained."""
        rollouts = self._section.rollouts
        below = next(index for index in range(len(done) + 1) if index not in done)
        steps = min(step + 1 + rollouts.ahead, self._section.steps)
        still = frozenset(index for index in done if index >= below)
        write_control(self._scratch, Control(steps * rollouts.prompts_per_step, below, still))

    def ready(self, step: int, done: set[int]) -> list[Group] | None:
        """The groups of a step, once all are there: the first that are finished, and before them those that
        would be too old for the next step, whose end is waited for. Dropping them instead would leave slow
        tasks out. Of a synchronous run these are the groups with the step's own numbers.

        A group may begin ``ahead`` steps before the one with its numbers, and no step has more than its size
        of such groups, as ``ahead`` is within the bound on staleness.
        """
        rollouts = self._section.rollouts
        size, ahead = rollouts.prompts_per_step, rollouts.ahead
        oldest = rollouts.max_staleness * self._section.push_every_steps if ahead else 0
        there = [index for index in self._spool.indices() if index not in done]
        must = {index for index in range((step + 1 + ahead - oldest) * size) if index not in done}
        chosen = [*sorted(must), *(index for index in there if index not in must)][:size]
        if len(chosen) < size or not must <= set(there):
            return None
        return [self._spool.get(index) for index in chosen]

    def figures(self) -> dict[str, float]:
        """Of each service what the worker tells, to be logged: ``service/<name>/share`` and others."""
        path = self._scratch / FIGURES
        services = json.loads(path.read_text())["services"] if path.exists() else {}
        values = {}
        for name, found in services.items():
            values |= {f"service/{name}/{key}": found.get(key, 0) for key in LOGGED}
            values[f"service/{name}/given_up"] = len(found["given_up"])
        return values

    def look_after(self) -> None:
        """Start again what has died. Raises ``UserError`` for what keeps dying."""
        for name in self._pool.look_after():
            print(f"{name} had died and was started again", flush=True)
        if not self._worker.alive:
            if self._worker.starts > MOST_WORKER_STARTS:
                raise UserError(f"the rollout worker keeps dying: {self._worker.last_words()}")
            print(f"the rollout worker is started again: {self._worker.last_words()}", flush=True)
            self._worker.start()

    def drop(self, done: set[int]) -> None:
        """Forget the groups that a saved state has been trained on."""
        for index in self._spool.indices():
            if index in done:
                self._spool.drop(index)
