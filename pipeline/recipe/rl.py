"""Sections of reinforcement learning: rl_tasks, reasoning_rl, agentic_rl, general_rl, distill.

Words, everywhere the same: a step takes ``prompts_per_step`` prompts with ``rollouts_per_prompt`` rollouts
each, a group is the rollouts of one prompt, a version is the weights after a push to the engines.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, model_validator

from pipeline.recipe.base import Address, Section
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
    # By "environment/family": the command of an agent that is a program of its own and speaks to the policy
    # over OpenAI's interface; see tasks/rl/gateway/program.py.
    programs: dict[str, Annotated[list[str], Field(min_length=1)]] = {}


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
    def _programs(self) -> Self:
        for name in self.rollouts.programs:
            if name not in self.families:
                known = ", ".join(self.families)
                raise ValueError(f"rollouts.programs names {name!r}, which is not among families: {known}")
        return self

    @model_validator(mode="after")
    def _staleness(self) -> Self:
        """Groups about to be too old are trained on before others, which is possible within this bound."""
        rollouts = self.rollouts
        if rollouts.ahead > rollouts.max_staleness * self.push_every_steps:
            raise ValueError(
                f"rollouts.ahead is {rollouts.ahead} steps, more than rollouts.max_staleness "
                f"{rollouts.max_staleness} allows with a push every {self.push_every_steps}: raise that"
            )
        return self


class ReasoningRlSection(RlSection):
    """GRPO with IcePop (paper section 3.2)."""

    beta: float = Field(2.0, gt=1)
    eps_low: float = Field(0.2, gt=0, lt=1)
    eps_high: float = Field(0.28, gt=0)
    # Of each task this many samples before training: those that are always solved are left out, and families
    # of which none is solved sometimes.
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


class RewardModel(Section):
    """The policy's own trunk with a scalar head, trained on pairs made here as the stage begins."""

    pairs: int = Field(gt=0)  # an oracle's answer against the same answer spoilt
    anchors: int = Field(0, ge=0)  # text written by people against the policy's own continuation
    heldout: float = Field(0.2, gt=0, lt=1)  # share of either, to measure on
    epochs: float = Field(2.0, gt=0)
    pairs_per_step: int = Field(16, gt=0)
    micro_batch: int = Field(4, gt=0)  # pairs of a forward pass
    lr: float = Field(gt=0)  # of AdamW
    anchor_tokens: int = Field(24, gt=0)  # of an anchor's beginning, and again of its continuation


class Judge(Section):
    """A model behind the OpenAI interface that judges answers (its key: OPENAI_API_KEY)."""

    base_url: Address
    model: str
    seconds: float = Field(60.0, gt=0)  # until an answer is there
    attempts: int = Field(4, gt=0)
    pause: float = Field(1.0, ge=0)  # seconds before the second attempt, twice that before the third, ...
    per_minute: float = Field(600.0, gt=0)  # requests, at most
    at_once: int = Field(16, gt=0)
    max_tokens: int = Field(512, gt=0)


RewardPart = Literal[
    "task", "format", "tools", "thinking", "language", "repetition", "length", "model", "judge"
]


class GeneralRlSection(RlSection):
    """Rules, a reward model and a judge beside the environments' verdicts (paper section 3.4). Their weights
    are not published, nor which of the two losses; ours is GRPO with IcePop, synchronous.
    """

    beta: float = Field(2.0, gt=1)
    eps_low: float = Field(0.2, gt=0, lt=1)
    eps_high: float = Field(0.28, gt=0)
    # The reward is their weighted mean over the parts that apply; a part of weight 0 is logged alone.
    rewards: Annotated[dict[RewardPart, NonNegativeFloat], Field(min_length=1)]
    long_from: int = Field(gt=0)  # sampled tokens of a rollout: from here on its length costs,
    long_until: int = Field(gt=0)  # and here the part "length" is 0
    reward_model: RewardModel | None = None
    judge: Judge | None = None

    @model_validator(mode="after")
    def _parts_have_what_they_need(self) -> Self:
        if not any(self.rewards.values()):
            raise ValueError("rewards: no weight is above 0")
        for part, section in (("model", self.reward_model), ("judge", self.judge)):
            name = "reward_model" if part == "model" else part
            if (part in self.rewards) != (section is not None):
                raise ValueError(f"rewards.{part} and the section {name} go together: set both or neither")
        if self.long_from >= self.long_until:
            raise ValueError("long_from must be below long_until")
        return self


class SingleRollouts(Rollouts):
    rollouts_per_prompt: int = Field(1, gt=0)  # a teacher judges each token: nothing is compared in a group


# By the stage that made it. The paper's figure 5 has no arrow from agentic RL; without one, what general RL
# unlearns of tools has no teacher.
Teacher = Literal["sft", "reasoning_rl", "agentic_rl", "general_rl"]


class DistillSection(RlSection):
    """On-policy cross-stage distillation into the model of general RL (paper section 3.5): groups of one, a
    batch of 1024. Each teacher is asked about the prompts of its own families, mixed by their weights.
    """

    beta: float = Field(2.0, gt=1)
    eps_low: float = Field(0.2, gt=0, lt=1)
    eps_high: float = Field(0.28, gt=0)
    rollouts: SingleRollouts
    teachers: Annotated[dict[Teacher, Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_teacher_each(self) -> Self:
        teacher_of: dict[str, str] = {}
        for teacher, families in self.teachers.items():
            for name in families:
                if name not in self.families:
                    raise ValueError(
                        f"teachers.{teacher} names {name}, which has no weight in families: add it"
                    )
                if name in teacher_of:
                    raise ValueError(
                        f"teachers: {name} is of both {teacher_of[name]} and {teacher}: leave it to one"
                    )
                teacher_of[name] = teacher
        if without := [name for name in self.families if name not in teacher_of]:
            raise ValueError(f"teachers: {', '.join(without)} of families has none: name it under one")
        return self

    @property
    def teacher_of(self) -> dict[str, Teacher]:
        """By family."""
        return {name: teacher for teacher, families in self.teachers.items() for name in families}
