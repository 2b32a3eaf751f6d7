"""How a stage of reinforcement learning ends: its policy as a checkpoint, the rollouts kept for people."""

import shutil
from pathlib import Path

from model.transformer import Transformer
from pipeline.stage import Context
from pipeline.tracking import STEP_TIMES, TRAJECTORIES
from tasks.training.output import write_checkpoint


def write_policy(context: Context, model: Transformer, start: Path) -> None:
    """``start``: the checkpoint that training began from, whose tokenizer is the policy's."""
    write_checkpoint(context, model, start)
    for name in (TRAJECTORIES, STEP_TIMES):
        shutil.copyfile(context.scratch / name, context.out / name)
