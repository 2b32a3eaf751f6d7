"""Pre-training without a stage around it: for ablations that compare variants on the same tokens."""

from pathlib import Path

import torch

from model.transformer import Transformer
from pipeline.recipe.training import PretrainSection
from tasks.training.batches import StreamBatches, rows_of_step
from tasks.training.objective import LanguageObjective
from tasks.training.schedule import schedule_factor, steps_for
from tasks.training.setup import make_optimizer


def pretrain(
    model: Transformer,
    objective: LanguageObjective,
    section: PretrainSection,
    data: Path,
    seed: int,
    tokens: int,
) -> int:
    """Train on ``tokens`` tokens of the ``pretrain_data`` artifact, in the order that the seed gives; returns
    the number of steps.
    """
    optimizer = make_optimizer(model, section.optimizer)
    batches = StreamBatches(data, section.sequence_length)
    steps = steps_for(section, tokens, section.sequence_length)
    per_step = section.global_batch_tokens // section.sequence_length
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * schedule_factor(section, step, steps)
        optimizer.zero_grad(set_to_none=True)
        batch = batches.take(rows_of_step(batches.rows, per_step, seed, step))
        loss, _ = objective(batch.to(model.embed.weight.device), step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), section.optimizer.clip)
        optimizer.step()
        objective.after_step()
    return steps
