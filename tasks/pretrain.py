"""Pre-training: dense MLA, next-token and multi-token-prediction loss, cosine schedule (paper section 2).

    python -m tasks.pretrain --recipe tiny

No indexer exists yet; documents stand end to end and are cut at the window's edge, as in GLM-4.5.
"""

from model.chat.tokenizer import Tokenizer
from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.stage import Context
from tasks.training.batches import StreamBatches
from tasks.training.launch import run_training_stage
from tasks.training.loop import Phase
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import train_to_checkpoint
from tasks.training.ranks import pick_device
from tasks.training.schedule import steps_for
from tasks.training.setup import validation_batches


def run(context: Context) -> dict[str, float]:
    """Train a model from scratch on the token stream."""
    section, data = context.section, context.inputs["pretrain_data"]
    tokenizer = Tokenizer.load(context.inputs["tokenizer"])
    config = context.recipe.model.config()
    if tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"{context.inputs['tokenizer']} has {tokenizer.vocab_size} tokens and model.vocab_size is "
            f"{config.vocab_size}: run stages tokenizer and pretrain_data again with the present recipe"
        )
    model = Transformer(config, seed=context.seed).to(pick_device())
    mtp = 1 / section.mtp.every_steps
    objective = LanguageObjective(model, token_bytes(tokenizer), section.balance, section.mtp)
    batches = StreamBatches(data, section.sequence_length)
    validation = StreamBatches(data, section.sequence_length, "validation.bin")
    phase = Phase(
        "train", batches, steps_for(section, section.tokens, section.sequence_length),
        validation_batches(validation, section.validation_rows, section.micro_batch),
    )  # fmt: skip
    return train_to_checkpoint(
        context, model, objective, [phase], tokenizer_folder=context.inputs["tokenizer"],
        flops_per_token=lambda length: config.training_flops_per_token(length, mtp=mtp),
    )  # fmt: skip


if __name__ == "__main__":
    run_training_stage("pretrain", run)
