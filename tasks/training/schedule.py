"""How many optimizer steps a stage makes, and the learning rate of each."""

import math

from pipeline.errors import UserError
from pipeline.recipe.training import TrainSection


def steps_for(section: TrainSection, tokens: int, length: int) -> int:
    """Optimizer steps that ``tokens`` make. Raises ``UserError`` when the batch words do not fit together."""
    micro_tokens = section.micro_batch * length
    if section.global_batch_tokens % micro_tokens:
        raise UserError(
            f"global_batch_tokens {section.global_batch_tokens} is no multiple of "
            f"micro_batch x sequence_length = {micro_tokens}"
        )
    steps = tokens // section.global_batch_tokens
    if steps < 1:
        raise UserError(f"{tokens} tokens are less than one global batch of {section.global_batch_tokens}")
    return steps


def schedule_factor(section: TrainSection, step: int, total: int) -> float:
    """Share of the peak learning rate at a step (from 0) of ``total``: warm-up, then the section's decay."""
    schedule = section.schedule
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    if schedule.shape == "constant":
        return 1.0
    progress = (step - schedule.warmup_steps) / max(1, total - schedule.warmup_steps)
    left = 1 - progress if schedule.shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return schedule.final + (1 - schedule.final) * left
