"""DSA sparse adaptation: all parameters train under sparse attention (GLM-5 section 2.1.1).

    python -m tasks.dsa_adapt --recipe tiny

The indexer's input is detached: it learns only from its own KL inside the selected set, and the rest of the
network only from the language-model loss (DeepSeek-V3.2 eq. 4).
"""

from model.chat.tokenizer import Tokenizer
from pipeline.stage import Context, run_stage
from tasks.training.batches import PackedBatches
from tasks.training.loop import Job, Phase, steps_for, train
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import write_checkpoint
from tasks.training.setup import load_model, make_optimizer, pick_device, split_validation


def run(context: Context) -> dict[str, float]:
    """Adapt the whole model to the keys that its indexer selects."""
    section, start = context.section, context.inputs["dsa_warmup"]
    device = pick_device()
    model = load_model(start, device)
    objective = LanguageObjective(
        model, token_bytes(Tokenizer.load(start)), section.balance, section.mtp,
        attention="sparse", indexer=section.indexer_loss,
    )  # fmt: skip
    packed = PackedBatches.read(context.inputs["midtrain_data"], section.sequence_length)
    batches, validation = split_validation(packed, section.validation_rows, section.micro_batch)
    steps = steps_for(section, section.tokens, section.sequence_length)
    job = Job(
        context, section, model, make_optimizer(model, section.optimizer), objective,
        [Phase("adapt", batches, steps, validation)], device,
        flops_per_token=lambda length: model.config.training_flops_per_token(
            length, "sparse", section.mtp.fraction
        ),
        after_step=objective.after_step, validate=objective.validate,
    )  # fmt: skip
    values = train(job)
    write_checkpoint(context, model, start)
    return values


if __name__ == "__main__":
    run_stage("dsa_adapt", run)
