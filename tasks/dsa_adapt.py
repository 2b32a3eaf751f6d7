"""DSA sparse adaptation: all parameters train under sparse attention (GLM-5 section 2.1.1).

    python -m tasks.dsa_adapt --recipe tiny

The indexer's input is detached: it learns only from its own KL inside the selected set, and the rest of the
network only from the language-model loss (DeepSeek-V3.2 eq. 4).
"""

from model.chat.tokenizer import Tokenizer
from pipeline.stage import Context
from tasks.training.launch import run_training_stage
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.output import train_to_checkpoint
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model, packed_phase


def run(context: Context) -> dict[str, float]:
    """Adapt the whole model to the keys that its indexer selects."""
    section, start = context.section, context.inputs["dsa_warmup"]
    model = load_model(start, pick_device())
    objective = LanguageObjective(
        model, token_bytes(Tokenizer.load(start)), section.balance, section.mtp,
        attention="sparse", indexer_loss=section.indexer_loss,
    )  # fmt: skip
    phase = packed_phase(context, "adapt", section.sequence_length, section.tokens)
    mtp = 1 / section.mtp.every_steps
    return train_to_checkpoint(
        context, model, objective, [phase], tokenizer_folder=start,
        flops_per_token=lambda length: model.config.training_flops_per_token(length, "sparse", mtp),
    )  # fmt: skip


if __name__ == "__main__":
    run_training_stage("dsa_adapt", run)
