"""What the stages of reinforcement learning cost at most, before anything is allocated.

How long rollouts get is not in a recipe, so these are upper bounds: every rollout takes all its turns, every
turn goes to its last token, and prompts and replies fill what a row of training has left. Not in them:
rollouts that are tried again as their environment failed, what engines read of prompts and replies, and what
a reward model or a judge reads.
"""

import math
from dataclasses import dataclass

from model.config import PAGE_TOKENS, ModelConfig
from pipeline.recipe.load import Recipe
from pipeline.recipe.rl import DistillSection, RlSection

STAGES = ("reasoning_rl", "agentic_rl", "general_rl", "distill")
BESIDE_ENGINES = 2  # processes: the trainer, the worker that plays the episodes
ENGINE_FLOAT_BYTES = 4  # engines compute in the float32 of the checkpoints


@dataclass(frozen=True)
class RolloutRow:
    """One stage. Tokens are of a step, FLOPs of all steps, ``cache_bytes`` of one engine."""

    phase: str
    steps: int
    rollouts: int
    turns: int
    sampled_tokens: int
    trained_tokens: int
    sampling_flops: float
    training_flops: float
    engines: int
    processes: int
    cache_bytes: int


def derive_rollouts(recipe: Recipe) -> list[RolloutRow]:
    """A row for each stage of reinforcement learning."""
    config = recipe.model.config()
    return [_row(name, getattr(recipe, name), config) for name in STAGES]


def describe_rollouts(recipe: Recipe) -> list[str]:
    """What the rows leave out: what a stage does before its first step, and beside its engines."""
    config, lines = recipe.model.config(), []
    reasoning, general, distill = recipe.reasoning_rl, recipe.general_rl, recipe.distill
    if reasoning.difficulty_samples:
        families = sum(weight > 0 for weight in reasoning.families.values())
        tasks = families * recipe.rl_tasks.tasks_per_family
        sampled = tasks * reasoning.difficulty_samples * _sampled(reasoning, config)
        lines.append(
            f"reasoning_rl first tries {tasks:,} tasks {reasoning.difficulty_samples} times each: at most "
            f"{sampled:,} tokens sampled, {sampled * _last_token_flops(config):.3g} FLOPs"
        )
    if general.reward_model is not None:
        pairs = general.reward_model.pairs + general.reward_model.anchors
        lines.append(
            f"general_rl first trains a reward model on {pairs:,} pairs, "
            f"{general.reward_model.epochs:g} epochs, not counted here"
        )
    teachers, cache = len(distill.teachers), cache_bytes(config, routes=False)  # they record no experts
    lines.append(
        f"distill has {teachers} teachers in the trainer's process, with a cache of "
        f"{cache / 2**30:.3g} GiB each; their forward pass is in the FLOPs of training"
    )
    return lines


def cache_bytes(config: ModelConfig, routes: bool) -> int:
    """Of an engine, the page that belongs to nobody included. ``routes``: with the experts of every token."""
    pages = config.cache_pages() + 1
    return pages * PAGE_TOKENS * config.cache_bytes_per_token(ENGINE_FLOAT_BYTES, routes)


def _row(name: str, section: RlSection, config: ModelConfig) -> RolloutRow:
    rollouts, length = section.rollouts, section.sequence_length
    count = rollouts.prompts_per_step * rollouts.rollouts_per_prompt
    sampled = count * _sampled(section, config)
    rows = math.ceil(count * _segments(section) / section.micro_batch) * section.micro_batch
    forward = config.forward_flops_per_token(length, "sparse")
    # The trainer's pass, once more forward where activations are computed again, and a teacher's.
    passes = section.recompute + isinstance(section, DistillSection)
    training = config.training_flops_per_token(length, "sparse") + passes * forward
    return RolloutRow(
        name, section.steps, count, rollouts.turns, sampled, rows * length,
        float(section.steps * sampled) * _last_token_flops(config),
        float(section.steps * rows * length) * training,
        rollouts.engines, rollouts.engines + BESIDE_ENGINES, cache_bytes(config, rollouts.record_experts),
    )  # fmt: skip


def _sampled(section: RlSection, config: ModelConfig) -> int:
    """Tokens of a rollout, whose segments hold a token of a prompt at least."""
    rollouts = section.rollouts
    return min(rollouts.turns * rollouts.max_new_tokens, _segments(section) * (config.max_positions - 1))


def _segments(section: RlSection) -> int:
    """Of a rollout. A new one begins where the policy is shown another history than it had: thinking of
    before a user's message is cleared, context is folded, an agent of its own sends what it likes.
    """
    rewritten = section.modes.get("interleaved") or getattr(section, "folding", None)
    return section.rollouts.turns if rewritten or section.rollouts.programs else 1


def _last_token_flops(config: ModelConfig) -> float:
    """Of the forward pass of a token that sees a whole context: no other costs as much. The cost function is
    a mean over all positions.
    """
    n = config.max_positions
    whole = n * config.forward_flops_per_token(n, "sparse")
    return whole - (n - 1) * config.forward_flops_per_token(n - 1, "sparse") if n > 1 else whole
