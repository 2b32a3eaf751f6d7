"""The training loop that all stages share: accumulate, clip, step, log, validate, save, resume.

A run is a pure function of (recipe, inputs, seed): the rows of a step and its random numbers come from
(seed, step) alone, so k steps, a kill and the rest equal all steps in one go bit for bit on CPU. In several
processes each takes its share of a step's micro-batches, and the step is the same up to rounding.
"""

import math
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from pipeline.errors import UserError
from pipeline.recipe.training import TrainSection
from pipeline.stage import Context
from tasks.training import checkpoint, ranks
from tasks.training.batches import Batch, Batches, rows_of_step
from tasks.training.micro_batches import Accumulator, NotFinite
from tasks.training.objective import Objective
from tasks.training.precision import narrow
from tasks.training.schedule import schedule_factor
from tasks.training.throughput import Throughput


@dataclass
class Phase:
    """One run of the loop over one kind of batch; mid-training has a phase for each context length."""

    name: str
    batches: Batches
    steps: int
    validation: list[Batch] = field(default_factory=list)


@dataclass
class Job:
    """What a stage hands to the loop."""

    context: Context
    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    phases: list[Phase]
    flops_per_token: Callable[[int], float]  # of training at a sequence length

    @property
    def section(self) -> TrainSection:
        return self.context.section

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def train(job: Job) -> dict[str, float]:
    """Run all phases from the last checkpoint, if any, and return the final values.

    Raises ``UserError`` on a loss that is not finite (naming the batch) and ``SystemExit`` after a SIGTERM,
    once the state is saved.
    """
    _require_work_for_all(job)
    total = sum(phase.steps for phase in job.phases)
    step, tokens, last = _resume(job)
    job.context.metrics.rewind(step)
    throughput = Throughput(job.device)
    accumulate = Accumulator(job.objective, job.model.parameters())
    stop = StopSignal()
    job.model.train()
    while step < total:
        phase, offset = _phase_at(job.phases, step)
        if offset == 0:
            # The value before the first step shows what the stage gains.
            last |= _validate(job, phase, step)
        values = _step(job, accumulate, phase, step, offset, total)
        step += 1
        tokens += job.section.global_batch_tokens
        done = offset + 1 == phase.steps
        rate = throughput.add(job.section.global_batch_tokens, job.flops_per_token(phase.batches.length))
        last |= values | rate | {"train/tokens": tokens}
        job.context.metrics.log(step, values | rate | {"train/tokens": tokens})
        note = f"loss {values['train/loss']:.3f}, {rate['perf/tokens_per_s']:,.0f} tok/s"
        job.context.progress.update(phase.name, offset + 1, phase.steps, "step", note)
        if done or step % job.section.validate_every_steps == 0:
            last |= _validate(job, phase, step)
            throughput.skip()
        stopping = any(ranks.gather(stop.asked))
        if stopping or step % job.section.save_every_steps == 0 or step == total:
            _save(job, step, tokens, last)
            throughput.skip()
        if stopping:
            raise SystemExit(
                f"{job.context.stage}: stopped after step {step} of {total}; start it again to go on"
            )
    job.context.facts |= {
        "tokens": tokens, "steps": step, "device": job.device.type, "processes": ranks.world_size(),
    }  # fmt: skip
    return last


def _require_work_for_all(job: Job) -> None:
    for phase in job.phases:
        if (micro_steps := job.section.micro_batches(phase.batches.length)) < ranks.world_size():
            raise UserError(
                f"{ranks.world_size()} processes cannot share the {micro_steps} micro-batches of a step of "
                f"phase {phase.name} of stage {job.context.stage}: start at most {micro_steps}, or lower "
                "its micro_batch"
            )


def _step(
    job: Job, accumulate: Accumulator, phase: Phase, step: int, offset: int, total: int
) -> dict[str, float]:
    section = job.section
    micro_steps = section.micro_batches(phase.batches.length)
    rows = rows_of_step(phase.batches.rows, section.micro_batch * micro_steps, job.context.seed, offset)
    factor = schedule_factor(section, step, total)
    for group in job.optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
    torch.manual_seed(job.context.seed * 1_000_003 + step)
    job.optimizer.zero_grad(set_to_none=True)
    mine = ranks.share(np.split(rows, micro_steps))
    batches = [phase.batches.take(rows_of_micro) for rows_of_micro in mine]
    logged = _gradients(job, accumulate, batches, step)
    norm = nn.utils.clip_grad_norm_(
        (p for p in job.model.parameters() if p.grad is not None), section.optimizer.clip
    )
    if not math.isfinite(norm.item()):
        raise UserError(
            f"the gradient norm is {norm.item()} at step {step} of stage {job.context.stage}: "
            "lower the learning rate"
        )
    job.optimizer.step()
    return (
        logged
        | job.objective.after_step()
        | {"optim/lr": job.optimizer.param_groups[0]["lr"], "optim/grad_norm": norm.item()}
    )


def _gradients(job: Job, accumulate: Accumulator, batches: list[Batch], step: int) -> dict[str, float]:
    """Set every parameter's ``grad`` to that of the whole step; returns the step's values."""
    targets = sum(ranks.gather(sum(batch.targets() for batch in batches)))
    fault, values = None, {}
    try:
        values = accumulate(batches, step, targets)
    except NotFinite as error:
        fault = str(error)
    faults, parts = zip(*ranks.gather((fault, values)), strict=True)
    if any(faults):
        raise UserError(
            f"{next(filter(None, faults))}, at step {step} of stage {job.context.stage}: look at these rows "
            "or lower the learning rate"
        )
    # The same parameters in all processes: which have one is a matter of the objective's ``kind``.
    ranks.add_up([parameter.grad for parameter in job.model.parameters() if parameter.grad is not None])
    if job.objective.loads and ranks.world_size() > 1:
        job.objective.loads[:] = [sum(job.objective.loads)]
        ranks.add_up(job.objective.loads)
    return {key: sum(part[key] for part in parts) for key in values}


@torch.no_grad()
def _validate(job: Job, phase: Phase, step: int) -> dict[str, float]:
    """Mean of the objective's values over the phase's validation batches, as ``val/...``."""
    if not phase.validation:
        return {}
    job.model.eval()
    sums: dict[str, float] = {}
    for batch in ranks.share(phase.validation):
        with narrow(job.device):
            loss, values = job.objective.validate(batch.to(job.device))
        for key, value in ({"train/loss": loss} | values).items():
            name = key.replace("train/", "val/")
            sums[name] = sums.get(name, 0.0) + float(value) / len(phase.validation)
    job.model.train()
    parts = ranks.gather(sums)  # the last ranks may have had no batch
    names = [key for key in parts[0] if not key.startswith("moe/")]
    kept = {key: sum(part.get(key, 0.0) for part in parts) for key in names}
    job.context.metrics.log(step, kept)
    return kept


def _phase_at(phases: list[Phase], step: int) -> tuple[Phase, int]:
    for phase in phases:
        if step < phase.steps:
            return phase, step
        step -= phase.steps
    raise IndexError("past the last step")


def _save(job: Job, step: int, tokens: int, last: dict[str, float]) -> None:
    if ranks.rank() != 0:
        return
    state = {
        "step": step, "tokens": tokens, "values": last,
        "model": job.model.state_dict(), "optimizer": job.optimizer.state_dict(),
    }  # fmt: skip
    checkpoint.save(job.context.scratch, step, state, job.section.keep_last)


def _resume(job: Job) -> tuple[int, int, dict[str, float]]:
    state = checkpoint.load_latest(job.context.scratch, job.device)
    steps = set(ranks.gather(state["step"] if state else 0))
    if len(steps) > 1:
        raise UserError(
            f"the processes of stage {job.context.stage} find checkpoints of steps {sorted(steps)} in "
            f"{job.context.scratch}: they need one folder that all of them see"
        )
    if state is None:
        return 0, 0, {}
    job.model.load_state_dict(state["model"])
    job.optimizer.load_state_dict(state["optimizer"])
    print(f"{job.context.stage}: going on from step {state['step']}", flush=True)
    return state["step"], state["tokens"], state["values"]


class StopSignal:
    """SIGTERM asks the loop to save and stop after the current step."""

    def __init__(self) -> None:
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
