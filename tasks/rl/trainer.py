"""The loop of reinforcement learning: rollouts of a step, one update, new weights to the engines.

Three kinds of processes: this one trains and looks after the others; engines sample; a worker plays episodes.
``rollouts.ahead`` says how many steps the worker may be ahead: 0 is synchronous and repeats, up to the
rounding of the engines' sums; above it rollouts and training overlap (paper section 4.1). Any of the
processes may be killed: engines and worker are started again by this one, this one goes on from its last
checkpoint, and as every group has a number that decides its task and seeds, none is lost or trained on
twice.
"""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from pipeline.errors import UserError
from pipeline.recipe.rl import RlSection
from pipeline.stage import Context
from pipeline.tracking import STEP_TIMES, TRAJECTORIES
from tasks.rl.batches import pack
from tasks.rl.catalog import CatalogConfig
from tasks.rl.group import Group
from tasks.rl.objective import PolicyLoss, PolicyObjective, freeze_indexer
from tasks.rl.orchestrator import Window
from tasks.rl.record import StepTimes, TrajectoryLog, describe
from tasks.rl.selection import Select, Selection
from tasks.rl.supply import Supply
from tasks.rl.worker import ServiceConfig
from tasks.training import checkpoint
from tasks.training.loop import StopSignal
from tasks.training.micro_batches import Accumulator, NotFinite
from tasks.training.schedule import schedule_factor
from tasks.training.setup import make_optimizer

SECONDS_BETWEEN_LOOKS = 0.02


@dataclass
class RlJob:
    """What a stage hands to the loop. ``start`` is the checkpoint that ``model`` was read from."""

    context: Context
    model: nn.Module
    start: Path
    pad_id: int
    services: list[ServiceConfig]
    loss: PolicyLoss
    select: Select  # what is trained on, of the groups of a step
    curriculum: list[Window] = field(default_factory=list)
    reset_optimizer: bool = False  # after a push of weights, as in the paper's agentic RL
    catalog: CatalogConfig = field(default_factory=CatalogConfig)  # of the worker's environments

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
        self.trajectories = TrajectoryLog(self.scratch / TRAJECTORIES, self.section.trajectories_kept)
        self.times = StepTimes(self.scratch / STEP_TIMES)
        self.step, self.version, self.last = 0, 0, {}
        self.done: set[int] = set()  # groups that were trained on
        self._resume()

    def run(self) -> dict[str, float]:
        job = self.job
        job.context.metrics.rewind(self.step)
        self.trajectories.rewind(self.step)
        self.times.rewind(self.step)
        stop = StopSignal()
        if self.step == self.section.steps:
            return self.last
        with Supply(
            self.section, start=job.start, scratch=self.scratch, seed=job.context.seed,
            services=job.services, curriculum=job.curriculum, catalog=job.catalog,
        ) as self.supply:  # fmt: skip
            self.supply.begin(self.model, self.version, self.step, self.done)
            while self.step < self.section.steps:
                self._one_step(stop)
                if stop.asked:
                    self._leave()
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
        selection = self.job.select(groups, self.version)
        selected = time.perf_counter()
        values = self._update(selection) | describe(groups, selection, self.version)
        values |= self._tokens_so_far(values["rollout/tokens"], selection)
        self.trajectories.keep(self.step, self.version, groups, selection)
        updated = time.perf_counter()
        self.step += 1
        self.done |= {group.index for group in groups}
        self._push()
        seconds = {
            "perf/rollout_s": gathered - started, "perf/select_s": selected - gathered,
            "perf/update_s": updated - selected, "perf/push_s": time.perf_counter() - updated,
        }  # fmt: skip
        self.times.keep(self.step - 1, seconds, groups)
        self._tell(values | seconds | self.supply.figures())
        if stop.asked or self.step % self.section.save_every_steps == 0 or self.step == self.section.steps:
            self._save()
        self.supply.want(self.step, self.done)

    def _tokens_so_far(self, sampled: int, selection: Selection) -> dict[str, float]:
        """Of all steps: sampled, and those of them that the policy learnt from, which are fewer as groups
        without a gradient are left out.
        """
        learnt = sum(sum(sample.segment.sampled) for sample in selection.samples)
        counts = {"train/tokens": sampled, "train/learnt_tokens": learnt}
        return {name: self.last.get(name, 0) + count for name, count in counts.items()}

    def _tell(self, values: dict[str, float]) -> None:
        """Before the state is saved: what is told of steps behind it is cut off on resume, never missing."""
        self.last |= values
        self.job.context.metrics.log(self.step, values)
        note = f"reward {values.get('reward/mean', math.nan):.3f}, {values['rollout/len_mean']:.0f} tokens"
        self.job.context.progress.update("train", self.step, self.section.steps, "step", note)

    def _gather(self, stop: StopSignal) -> list[Group]:
        while (groups := self.supply.ready(self.step, self.done)) is None:
            self.supply.look_after()
            if stop.asked:
                self._save()
                self._leave()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return groups

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
        """At equal weights, which are those of the first step after a push, engine and trainer must agree:
        otherwise every gradient is wrong, and reward hides it.
        """
        just_pushed = self.step % self.section.push_every_steps == 0
        current = all(set(s.segment.versions) <= {-1, self.version} for s in selection.samples)
        if just_pushed and current and values["mismatch_kl"] > self.section.mismatch_limit:
            raise UserError(
                f"engine and trainer disagree at step {self.step}: KL {values['mismatch_kl']:.2g} nats at "
                f"equal weights, more than mismatch_limit {self.section.mismatch_limit:g}: compare them on "
                "one sequence"
            )

    def _push(self) -> None:
        """New weights to the engines, where it is time for them."""
        if self.step % self.section.push_every_steps == 0:
            self.version += 1
            self.supply.push(self.model, self.version)
            if self.job.reset_optimizer:
                self.optimizer.reset()

    def _save(self) -> None:
        state = {
            "step": self.step, "version": self.version, "values": self.last, "done": sorted(self.done),
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        checkpoint.save(self.scratch, self.step, state, self.section.keep_last)
        self.supply.drop(self.done)

    def _resume(self) -> None:
        state = checkpoint.load_latest(self.scratch, self.device)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.version, self.last = state["step"], state["version"], state["values"]
        self.done = set(state["done"])
        print(f"{self.job.context.stage}: going on from step {self.step}", flush=True)
