"""Supervised fine-tuning on verified chats with three thinking modes and tool calls (paper section 3.1).

    python -m tasks.sft --recipe tiny

Only what the model itself has to sample is trained; prompts, tool results and wrong turns stay in context but
are masked. Chats are packed into rows, and none attends to another.
"""

from model.chat.tokenizer import Tokenizer
from pipeline.stage import Context, run_stage
from tasks.training.chats import read_chats
from tasks.training.loop import Job, Phase, steps_for, train
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import write_checkpoint
from tasks.training.setup import load_model, make_optimizer, pick_device, validation_batches


def run(context: Context) -> dict[str, float]:
    """Fine-tune the sparse model on chats."""
    section, start = context.section, context.inputs["dsa_adapt"]
    device = pick_device()
    model = load_model(start, device)
    tokenizer = Tokenizer.load(start)
    objective = LanguageObjective(
        model, token_bytes(tokenizer), section.balance,
        attention="sparse", indexer=section.indexer_loss,
    )  # fmt: skip
    chats = read_chats(
        context.inputs["sft_data"] / "chats.jsonl", tokenizer, section.sequence_length,
        section.validation_rows,
    )  # fmt: skip
    context.facts |= chats.facts
    tokens = int(section.epochs * chats.train.rows * section.sequence_length)
    steps = steps_for(section, tokens, section.sequence_length)
    validation = validation_batches(chats.validation, section.validation_rows, section.micro_batch)
    job = Job(
        context, section, model, make_optimizer(model, section.optimizer), objective,
        [Phase("train", chats.train, steps, validation)], device,
        flops_per_token=lambda length: model.config.training_flops_per_token(length, "sparse"),
        after_step=objective.after_step, validate=objective.validate,
    )  # fmt: skip
    values = train(job)
    write_checkpoint(context, model, start)
    return values


if __name__ == "__main__":
    run_stage("sft", run)
