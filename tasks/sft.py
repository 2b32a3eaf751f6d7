"""Supervised fine-tuning on verified chats with three thinking modes and tool calls (paper section 3.1).

    python -m tasks.sft --recipe tiny

Only what the model itself has to sample is trained; prompts, tool results and wrong turns stay in context but
are masked. Chats are packed into rows, and none attends to another.
"""

from model.chat.tokenizer import Tokenizer
from pipeline.stage import Context
from tasks.training.chats import read_chats
from tasks.training.launch import run_training_stage
from tasks.training.loop import Phase
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import train_to_checkpoint
from tasks.training.ranks import pick_device
from tasks.training.schedule import steps_for
from tasks.training.setup import load_model, validation_batches

QAT_BITS = {"int4": 4}


def run(context: Context) -> dict[str, float]:
    """Fine-tune the sparse model on chats."""
    section, start = context.section, context.inputs["dsa_adapt"]
    model = load_model(start, pick_device())
    if section.qat:
        model.train_quantized(QAT_BITS[section.qat])
    tokenizer = Tokenizer.load(start)
    objective = LanguageObjective(
        model, token_bytes(tokenizer), section.balance,
        attention="sparse", indexer_loss=section.indexer_loss,
    )  # fmt: skip
    path, length = context.inputs["sft_data"] / "chats.jsonl", section.sequence_length
    chats = read_chats(path, tokenizer, length, section.validation_rows)
    context.facts |= chats.facts
    steps = steps_for(section, int(section.epochs * chats.train.rows * length), length)
    validation = validation_batches(chats.validation, section.validation_rows, section.micro_batch)
    phase = Phase("train", chats.train, steps, validation)
    return train_to_checkpoint(
        context, model, objective, [phase], tokenizer_folder=start,
        flops_per_token=lambda length: model.config.training_flops_per_token(length, "sparse"),
    )  # fmt: skip


if __name__ == "__main__":
    run_training_stage("sft", run)
