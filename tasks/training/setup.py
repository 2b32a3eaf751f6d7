"""What the training stages set up alike: device, model, optimizer, rows for training and for validation."""

from pathlib import Path

import numpy as np
import torch

from model.hub import load_folder
from model.optim import build_optimizer
from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.recipe.training import Optimizer
from pipeline.stage import Context
from tasks.training import ranks
from tasks.training.batches import Batch, Batches, PackedBatches
from tasks.training.loop import Phase
from tasks.training.schedule import steps_for


def load_model(folder: Path, device: torch.device) -> Transformer:
    """The checkpoint of an earlier stage. Raises ``UserError`` where it does not fit its own config."""
    try:
        return load_folder(folder).to(device)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot load the checkpoint {folder}: {error}") from error


def make_optimizer(model: Transformer, section: Optimizer) -> torch.optim.Optimizer:
    """Muon and AdamW over the parameters that need a gradient; each group remembers its peak rate."""
    optimizer = build_optimizer(
        model, muon_lr=section.muon_lr, adamw_lr=section.adamw_lr, momentum=section.momentum,
        betas=section.betas, weight_decay=section.weight_decay, muon_split=section.muon_split,
        shard=ranks.group(),
    )  # fmt: skip
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def packed_phase(context: Context, name: str, length: int, tokens: int) -> Phase:
    """Training on the rows of ``length`` tokens that ``midtrain_data`` packed, some of them held out."""
    section = context.section
    packed = PackedBatches.read(context.inputs["midtrain_data"], length)
    batches, validation = split_validation(packed, section.validation_rows, section.micro_batch)
    return Phase(name, batches, steps_for(section, tokens, length), validation)


def split_validation(packed: PackedBatches, rows: int, micro_batch: int) -> tuple[PackedBatches, list[Batch]]:
    """Keep ``rows`` packed rows, evenly spread, out of training, for validation."""
    if packed.rows <= rows:
        raise UserError(
            f"{packed.name} has {packed.rows} rows, no more than the {rows} kept for validation: "
            "raise its tokens in midtrain_data.contexts or lower validation_rows"
        )
    return packed.without(spread(packed.rows, rows)), validation_batches(packed, rows, micro_batch)


def validation_batches(batches: Batches, rows: int, micro_batch: int) -> list[Batch]:
    """``rows`` rows in micro-batches, evenly spread, so that every source has its share."""
    chosen = spread(batches.rows, min(rows, batches.rows))
    return [batches.take(chosen[at : at + micro_batch]) for at in range(0, len(chosen), micro_batch)]


def spread(total: int, count: int) -> np.ndarray:
    """``count`` of ``total`` row numbers at equal distances."""
    return np.arange(count) * total // count
