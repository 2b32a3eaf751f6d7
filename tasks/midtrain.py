"""Mid-training: the context grows in steps, the RoPE base is raised (paper section 2.3, GLM-4.5 section 2.4).

    python -m tasks.midtrain --recipe tiny

Sequences are packed with document boundaries kept: no document attends to another.
"""

from model.chat.tokenizer import Tokenizer
from pipeline.stage import Context
from tasks.training.launch import run_training_stage
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import train_to_checkpoint
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model, packed_phase


def run(context: Context) -> dict[str, float]:
    """Continue the pre-trained model on longer sequences."""
    section, start = context.section, context.inputs["pretrain"]
    model = load_model(start, pick_device())
    model.set_rope_base(section.rope_base)
    objective = LanguageObjective(model, token_bytes(Tokenizer.load(start)), section.balance, section.mtp)
    phases = [
        packed_phase(context, f"context {step.sequence_length}", step.sequence_length, step.tokens)
        for step in section.contexts
    ]
    mtp = 1 / section.mtp.every_steps
    return train_to_checkpoint(
        context, model, objective, phases, tokenizer_folder=start,
        flops_per_token=lambda length: model.config.training_flops_per_token(length, mtp=mtp),
    )  # fmt: skip


if __name__ == "__main__":
    run_training_stage("midtrain", run)
