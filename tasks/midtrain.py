"""Mid-training: the context grows in steps, the RoPE base is raised (paper section 2.3, GLM-4.5 section 2.4).

    python -m tasks.midtrain --recipe tiny

Sequences are packed with document boundaries kept: no document attends to another.
"""

from model.chat.tokenizer import Tokenizer
from pipeline.stage import Context, run_stage
from tasks.training.batches import PackedBatches
from tasks.training.loop import Job, Phase, steps_for, train
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import write_checkpoint
from tasks.training.setup import load_model, make_optimizer, pick_device, split_validation


def run(context: Context) -> dict[str, float]:
    """Continue the pre-trained model on longer sequences."""
    section, start = context.section, context.inputs["pretrain"]
    device = pick_device()
    model = load_model(start, device)
    model.set_rope_base(section.rope_base)
    tokenizer = Tokenizer.load(start)
    objective = LanguageObjective(model, token_bytes(tokenizer), section.balance, section.mtp)
    phases = []
    for step in section.contexts:
        packed = PackedBatches.read(context.inputs["midtrain_data"], step.sequence_length)
        batches, validation = split_validation(packed, section.validation_rows, section.micro_batch)
        steps = steps_for(section, step.tokens, step.sequence_length)
        phases.append(Phase(f"context {step.sequence_length}", batches, steps, validation))
    job = Job(
        context, section, model, make_optimizer(model, section.optimizer), objective, phases, device,
        flops_per_token=lambda length: model.config.training_flops_per_token(
            length, mtp=section.mtp.fraction
        ),
        after_step=objective.after_step, validate=objective.validate,
    )  # fmt: skip
    values = train(job)
    write_checkpoint(context, model, start)
    return values


if __name__ == "__main__":
    run_stage("midtrain", run)
