"""The loop of reinforcement learning: rollouts of a step, one update, new weights to the engines.

Three kinds of processes: this one trains and looks after the others; engines sample; a worker plays episodes.
``rollouts.ahead`` says how many steps the worker may be ahead: 0 is synchronous and repeats, up to the
rounding of the engines' sums; above it rollouts and training overlap (paper section 4.1). Any of the
processes may be killed: engines and worker are started again by this one, this one goes on from its last
checkpoint, and as every group has a number that decides its task and seeds, none is lost or trained on
twice.
"""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from pipeline.errors import UserError
from pipeline.recipe.rl import RlSection
from pipeline.stage import Context
from tasks.rl.batches import pack
from tasks.rl.engines.pool import EnginePool
from tasks.rl.engines.process import Child
from tasks.rl.group import Group, Spool
from tasks.rl.objective import PolicyLoss, PolicyObjective, freeze_indexer
from tasks.rl.orchestrator import Control, Window
from tasks.rl.selection import Advantages, Selection, select
from tasks.rl.trajectory import Trajectory, mean_reward
from tasks.rl.worker import SPOOL, ServiceConfig, WorkerConfig, write_control
from tasks.training import checkpoint
from tasks.training.loop import StopSignal
from tasks.training.micro_batches import Accumulator, NotFinite
from tasks.training.schedule import schedule_factor
from tasks.training.setup import make_optimizer

SECONDS_BETWEEN_LOOKS = 0.02
MOST_WORKER_STARTS = 5
TRAJECTORIES = "trajectories.jsonl"


@dataclass
class RlJob:
    """What a stage hands to the loop. ``start`` is the checkpoint that ``model`` was read from."""

    context: Context
    model: nn.Module
    start: Path
    pad_id: int
    services: list[ServiceConfig]
    loss: PolicyLoss
    advantages: Advantages
    curriculum: list[Window] = field(default_factory=list)
    reset_optimizer: bool = False  # after a push of weights, as in the paper's agentic RL

    @property
    def section(self) -> RlSection:
        return self.context.section


def train_policy(job: RlJob) -> dict[str, float]:
    """Run all steps from the last checkpoint, if any; returns the final values.

    Raises ``UserError`` where engines or worker keep dying, where engine and trainer disagree at equal
    weights, and for a loss that is not finite; ``SystemExit`` after a SIGTERM, once the state is saved.
    """
    return _Run(job).run()


class _Run:
    def __init__(self, job: RlJob):
        self.job, self.section, self.model = job, job.section, job.model
        self.scratch, self.device = job.context.scratch, next(job.model.parameters()).device
        self.model.recompute = self.section.recompute
        freeze_indexer(self.model)
        self.optimizer = make_optimizer(self.model, self.section.optimizer)
        self.accumulate = Accumulator(PolicyObjective(self.model, job.loss), self.model.parameters())
        self.spool = Spool(self.scratch / SPOOL)
        self.step, self.version, self.last = 0, 0, {}
        self.done: set[int] = set()  # groups that were trained on
        self._resume()

    def run(self) -> dict[str, float]:
        rollouts, job = self.section.rollouts, self.job
        job.context.metrics.rewind(self.step)
        stop = StopSignal()
        if self.step == self.section.steps:
            return self.last
        threads = max(1, (os.cpu_count() or 1) // (rollouts.engines + bool(rollouts.ahead)))
        with EnginePool(
            job.start, count=rollouts.engines, scratch=self.scratch, threads=threads, decode=rollouts.decode,
            record_experts=rollouts.record_experts,
        ) as pool:  # fmt: skip
            self.pool = pool
            if self.version:
                pool.push(self.model, self.version)
            self._want()
            self.worker = self._worker()
            self.worker.start()
            try:
                while self.step < self.section.steps:
                    self._one_step(stop)
                    if stop.asked:
                        self._leave()
            finally:
                self.worker.stop()
        return self.last

    def _leave(self) -> NoReturn:
        raise SystemExit(
            f"{self.job.context.stage}: stopped after step {self.step} of {self.section.steps}; "
            "start it again to go on"
        )

    def _one_step(self, stop: StopSignal) -> None:
        started = time.perf_counter()
        groups = self._gather(stop)
        gathered = time.perf_counter()
        selection = select(
            groups, self.version, self.job.advantages, max_staleness=self.section.rollouts.max_staleness,
            length=self.section.sequence_length,
        )  # fmt: skip
        values = self._update(selection) | self._describe(groups, selection)
        updated = time.perf_counter()
        self.step += 1
        self.done |= {group.index for group in groups}
        pushed = self.step % self.section.push_every_steps == 0
        if pushed:
            self.version += 1
            self.pool.push(self.model, self.version)
            if self.job.reset_optimizer:
                self.optimizer.state.clear()
        if stop.asked or self.step % self.section.save_every_steps == 0 or self.step == self.section.steps:
            self._save()
        self._want()
        values |= {
            "perf/rollout_s": gathered - started, "perf/update_s": updated - gathered,
            "perf/push_s": time.perf_counter() - updated if pushed else 0.0,
        }  # fmt: skip
        self.last |= values
        context = self.job.context
        context.metrics.log(self.step, values)
        note = f"reward {values.get('reward/mean', math.nan):.3f}, {values['rollout/len_mean']:.0f} tokens"
        context.progress.update("train", self.step, self.section.steps, "step", note)

    def _gather(self, stop: StopSignal) -> list[Group]:
        """The groups of a step. Synchronous: those with its own numbers; else the first that are finished."""
        size, ahead = self.section.rollouts.prompts_per_step, self.section.rollouts.ahead
        wanted = range(self.step * size, (self.step + 1) * size)
        while True:
            there = [index for index in self.spool.indices() if index not in self.done]
            if ahead:
                ready = there[:size]
            else:
                ready = [index for index in there if index in wanted]
            if len(ready) == size:
                return [self.spool.get(index) for index in ready]
            self._look_after()
            if stop.asked:
                self._save()
                self._leave()
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _update(self, selection: Selection) -> dict[str, float]:
        """One optimizer step; none where nothing is left to learn from."""
        section = self.section
        factor = schedule_factor(section, self.step, section.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        rate = {"optim/lr": self.optimizer.param_groups[0]["lr"]}
        batches = pack(selection.samples, section.sequence_length, section.micro_batch, self.job.pad_id)
        if not batches:
            return rate
        torch.manual_seed(self.job.context.seed * 1_000_003 + self.step)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.train()
        try:
            values = self.accumulate(batches, self.step)
        except NotFinite as error:
            raise UserError(f"{error}, at step {self.step}: lower the learning rate") from None
        self._check_mismatch(values, selection)
        norm = nn.utils.clip_grad_norm_(
            [p for p in self.model.parameters() if p.grad is not None], section.optimizer.clip
        )
        if not math.isfinite(norm.item()):
            raise UserError(
                f"the gradient norm is {norm.item()} at step {self.step}: lower the learning rate"
            )
        self.optimizer.step()
        return values | rate | {"optim/grad_norm": norm.item()}

    def _check_mismatch(self, values: dict[str, float], selection: Selection) -> None:
        """At equal weights engine and trainer must agree: otherwise every gradient is wrong, and reward
        hides it.
        """
        current = all(set(s.segment.versions) <= {-1, self.version} for s in selection.samples)
        if current and values["mismatch_kl"] > self.section.mismatch_limit:
            raise UserError(
                f"engine and trainer disagree at step {self.step}: KL {values['mismatch_kl']:.2g} nats at "
                f"equal weights, more than mismatch_limit {self.section.mismatch_limit:g}: compare them on "
                "one sequence"
            )

    def _describe(self, groups: Sequence[Group], selection: Selection) -> dict[str, float]:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        self._keep(trajectories)
        by_family: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            by_family.setdefault(f"{trajectory.environment}/{trajectory.family}", []).append(trajectory)
        rewards = {f"reward/{name}": mean_reward(found) for name, found in sorted(by_family.items())}
        rewards["reward/mean"] = mean_reward(trajectories)
        ages = [trajectory.staleness(self.version) for trajectory in trajectories if trajectory.tokens]
        tokens = [trajectory.tokens for trajectory in trajectories]
        values = {name: value for name, value in rewards.items() if value is not None}
        values |= {
            "rollout/len_mean": sum(tokens) / len(tokens), "rollout/len_max": max(tokens),
            "rollout/seconds_mean": sum(t.seconds for t in trajectories) / len(trajectories),
            "rollout/segments_mean": sum(len(t.segments) for t in trajectories) / len(trajectories),
            "off_policy/age_max": max(ages, default=0), "off_policy/age_mean": sum(ages) / max(len(ages), 1),
            "train/tokens": self.last.get("train/tokens", 0) + sum(tokens),
        }  # fmt: skip
        return values | {f"rollouts/{name}": count for name, count in selection.counts.items()}

    def _keep(self, trajectories: list[Trajectory]) -> None:
        """Some of a step, for people: the first of each family."""
        kept: dict[str, Trajectory] = {}
        for trajectory in trajectories:
            kept.setdefault(trajectory.family, trajectory)
        with open(self.scratch / TRAJECTORIES, "a") as file:
            for trajectory in list(kept.values())[: self.section.trajectories_kept]:
                record = {"step": self.step, **trajectory.to_record()}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _want(self) -> None:
        """Tell the worker how far it may go."""
        rollouts = self.section.rollouts
        below = next(index for index in range(len(self.done) + 1) if index not in self.done)
        steps = min(self.step + 1 + rollouts.ahead, self.section.steps)
        done = frozenset(index for index in self.done if index >= below)
        write_control(self.scratch, Control(steps * rollouts.prompts_per_step, below, done))

    def _look_after(self) -> None:
        for name in self.pool.look_after():
            print(f"{name} had died and was started again", flush=True)
        if not self.worker.alive:
            if self.worker.starts > MOST_WORKER_STARTS:
                raise UserError(f"the rollout worker keeps dying: {self.worker.last_words()}")
            print(f"the rollout worker is started again: {self.worker.last_words()}", flush=True)
            self.worker.start()

    def _worker(self) -> Child:
        rollouts = self.section.rollouts
        config = WorkerConfig(
            scratch=self.scratch, checkpoint=self.job.start, services=self.job.services,
            seed=self.job.context.seed, rollouts_per_prompt=rollouts.rollouts_per_prompt,
            at_once=rollouts.at_once, max_new_tokens=rollouts.max_new_tokens,
            record_experts=rollouts.record_experts, curriculum=self.job.curriculum,
        )  # fmt: skip
        path = self.scratch / "worker.json"
        path.write_text(config.model_dump_json())
        command = [sys.executable, "-m", "tasks.rl.worker", str(path)]
        return Child(
            "the rollout worker", command, self.scratch / "logs/worker.log", {"OMP_NUM_THREADS": "1"}
        )

    def _save(self) -> None:
        state = {
            "step": self.step, "version": self.version, "values": self.last, "done": sorted(self.done),
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        checkpoint.save(self.scratch, self.step, state, self.section.keep_last)
        for index in self.spool.indices():
            if index in self.done:
                self.spool.drop(index)

    def _resume(self) -> None:
        state = checkpoint.load_latest(self.scratch, self.device)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.version, self.last = state["step"], state["version"], state["values"]
        self.done = set(state["done"])
        _rewind(self.scratch / TRAJECTORIES, self.step)
        print(f"{self.job.context.stage}: going on from step {self.step}", flush=True)


def _rewind(path: Path, step: int) -> None:
    """Keep the lines of earlier steps alone."""
    if path.exists():
        lines = [line for line in path.read_text().splitlines() if json.loads(line)["step"] < step]
        path.write_text("".join(f"{line}\n" for line in lines))
