"""How a training stage ends: the model is trained and left as a Hugging Face folder, with its curves."""

import shutil
from collections.abc import Callable
from pathlib import Path

from model.chat.files import save_chat_files
from model.hub import save_folder
from model.transformer import Transformer
from pipeline.stage import Context
from tasks.training import ranks
from tasks.training.curves import write_curves
from tasks.training.loop import Job, Phase, train
from tasks.training.objective import Objective
from tasks.training.setup import make_optimizer


def train_to_checkpoint(
    context: Context,
    model: Transformer,
    objective: Objective,
    phases: list[Phase],
    *,
    flops_per_token: Callable[[int], float],
    tokenizer_folder: Path,
) -> dict[str, float]:
    """Train what requires a gradient and write the checkpoint; returns the final values."""
    model.recompute = context.section.recompute
    optimizer = make_optimizer(model, context.section.optimizer)
    values = train(Job(context, model, optimizer, objective, phases, flops_per_token))
    if ranks.rank() == 0:
        write_checkpoint(context, model, tokenizer_folder)
    return values


def write_checkpoint(context: Context, model: Transformer, tokenizer_folder: Path) -> None:
    """Weights, config, tokenizer and chat template: a folder that transformers opens by itself."""
    save_folder(model, context.out)
    shutil.copyfile(tokenizer_folder / "tokenizer.json", context.out / "tokenizer.json")
    save_chat_files(context.out, model.config.max_positions)
    write_curves(context.scratch, context.out)
