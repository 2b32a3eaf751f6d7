"""Pre-training: dense MLA, next-token and multi-token-prediction loss, cosine schedule (paper section 2).

    python -m tasks.pretrain --recipe tiny

No indexer exists yet; documents stand end to end and are cut at the window's edge, as in GLM-4.5.
"""

from model.chat.tokenizer import Tokenizer
from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.stage import Context, run_stage
from tasks.training.batches import StreamBatches
from tasks.training.loop import Job, Phase, steps_for, train
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import write_checkpoint
from tasks.training.setup import make_optimizer, pick_device, validation_batches


def run(context: Context) -> dict[str, float]:
    """Train a model from scratch on the token stream."""
    section, data = context.section, context.inputs["pretrain_data"]
    device = pick_device()
    tokenizer = Tokenizer.load(context.inputs["tokenizer"])
    config = context.recipe.model.config()
    if tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}: "
            "make tokenizer.vocab_size and model.vocab_size equal in the recipe"
        )
    model = Transformer(config, seed=context.seed).to(device)
    objective = LanguageObjective(model, token_bytes(tokenizer), section.balance, section.mtp)
    batches = StreamBatches(data, section.sequence_length)
    heldout = StreamBatches(data, section.sequence_length, "validation.bin")
    phase = Phase(
        "train", batches, steps_for(section, section.tokens, section.sequence_length),
        validation_batches(heldout, section.validation_rows, section.micro_batch),
    )  # fmt: skip
    job = Job(
        context, section, model, make_optimizer(model, section.optimizer), objective, [phase], device,
        flops_per_token=lambda length: config.training_flops_per_token(length, mtp=section.mtp.fraction),
        after_step=objective.after_step, validate=objective.validate,
    )  # fmt: skip
    values = train(job)
    write_checkpoint(context, model, context.inputs["tokenizer"])
    return values


if __name__ == "__main__":
    run_stage("pretrain", run)
