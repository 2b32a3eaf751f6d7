"""Sections of reinforcement learning: rl_tasks, reasoning_rl, agentic_rl, general_rl, distill.

Words, everywhere the same: a step takes ``prompts_per_step`` prompts with ``rollouts_per_prompt`` rollouts
each, a group is the rollouts of one prompt, a version is the weights after a push to the engines.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat

from pipeline.recipe.base import Section
from pipeline.recipe.data import Mode, _quoted
from pipeline.recipe.training import Optimizer, Schedule

Weights = Annotated[dict[str, NonNegativeFloat], Field(min_length=1)]  # by "environment/family"
ModeWeights = Annotated[dict[Mode, NonNegativeFloat], BeforeValidator(_quoted), Field(min_length=1)]


class RlTasksSection(Section):
    """Tasks for the stages of reinforcement learning: as many of each family."""

    families: Annotated[list[str], Field(min_length=1)]
    tasks_per_family: int = Field(200, gt=0)


class Rollouts(Section):
    engines: int = Field(2, gt=0)  # processes
    prompts_per_step: int = Field(gt=0)
    rollouts_per_prompt: int = Field(gt=1)
    max_new_tokens: int = Field(gt=0)  # of a turn
    turns: int = Field(8, gt=0)
    at_once: int = Field(256, gt=0)
    seconds: float = Field(300.0, gt=0)  # of a rollout, until its environment is held to hang
    decode: Literal["plain", "padded", "graphs", "native"] | None = None  # of the engines; None: by device
    record_experts: bool = True  # and replay them in the trainer
    # Steps that rollouts may run ahead of the trainer: 0 is synchronous, each step's rollouts are of its
    # weights.
    ahead: int = Field(0, ge=0)
    max_staleness: int = Field(4, ge=0)  # versions; trajectories that are older are dropped


class RlSection(Section):
    """What the stages share."""

    version: int = 1  # raised when the meaning of the stage's code changes; holds in its identity
    steps: int = Field(gt=0)
    optimizer: Optimizer
    schedule: Schedule = Schedule(shape="constant")
    rollouts: Rollouts
    families: Weights
    modes: ModeWeights
    sequence_length: int = Field(gt=0)  # tokens of a row that trajectories are packed into
    micro_batch: int = Field(gt=0)  # rows
    recompute: bool = False
    push_every_steps: int = Field(1, gt=0)  # new weights to the engines
    save_every_steps: int = Field(5, gt=0)
    keep_last: int = Field(2, gt=0)
    mismatch_limit: float = Field(
        0.01, gt=0
    )  # nats, KL(engine || trainer) at equal weights; above it is a fault
    trajectories_kept: int = Field(4, ge=0)  # of a step, for people


class ReasoningRlSection(RlSection):
    """GRPO with IcePop (paper section 3.2)."""

    beta: float = Field(2.0, gt=1)
    eps_low: float = Field(0.2, gt=0, lt=1)
    eps_high: float = Field(0.28, gt=0)
    # Of each task this many samples before training: those that are always or never solved are left out.
    difficulty_samples: int = Field(4, ge=0)
    easy_share: float = Field(0.5, ge=0, le=1)  # of the steps, on the easier half of the tasks alone
