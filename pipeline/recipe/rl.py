"""Sections of reinforcement learning: rl_tasks, reasoning_rl, agentic_rl, general_rl, distill.

Words, everywhere the same: a step takes ``prompts_per_step`` prompts with ``rollouts_per_prompt`` rollouts
each, a group is the rollouts of one prompt, a version is the weights after a push to the engines.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, model_validator

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

    @model_validator(mode="after")
    def _staleness(self) -> Self:
        """Groups about to be too old are trained on before others, which is possible within this bound."""
        rollouts = self.rollouts
        if rollouts.ahead > rollouts.max_staleness * self.push_every_steps:
            raise ValueError(
                f"rollouts.ahead is {rollouts.ahead} steps, more than rollouts.max_staleness "
                f"{rollouts.max_staleness} allows at a push every {self.push_every_steps}: raise max_staleness"
            )
        return self


class ReasoningRlSection(RlSection):
    """GRPO with IcePop (paper section 3.2)."""

    beta: float = Field(2.0, gt=1)
    eps_low: float = Field(0.2, gt=0, lt=1)
    eps_high: float = Field(0.28, gt=0)
    # Of each task this many samples before training: those that are always or never solved are left out.
    difficulty_samples: int = Field(4, ge=0)
    easy_share: float = Field(0.5, ge=0, le=1)  # of the steps, on the easier half of the tasks alone


class Folding(Section):
    """What a rollout is shown of its own history (paper section 4.2.4)."""

    keep_rounds: int = Field(5, ge=0)  # tool calls whose results stay; those of older ones are left out
    reset_tokens: int = Field(32_768, gt=0)  # in a context that is still longer every round is dropped


class AgenticRlSection(RlSection):
    """Asynchronous RL of agents with double-sided importance sampling (paper sections 3.3 and 4.1)."""

    eps_low: float = Field(0.2, gt=0)
    eps_high: float = Field(0.28, gt=0)
    harbor: NonNegativeFloat = 0.0  # weight of the tasks of agent_tasks, beside those of ``families``
    search: NonNegativeFloat = 0.0  # and of the questions of search_tasks
    sandboxes: int = Field(8, gt=0)  # episodes at once of each service whose commands run in one
    backend: Literal["bubblewrap", "docker"] | None = None  # of sandboxes; None: the best that works here
    folding: Folding | None = None  # None: a context is never folded

    @model_validator(mode="after")
    def _asynchronous(self) -> Self:
        if not self.rollouts.ahead:
            raise ValueError("rollouts.ahead is 0: agentic RL is asynchronous, let rollouts be a step ahead")
        return self
