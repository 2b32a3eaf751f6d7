"""DSA dense warm-up: the lightning indexer is added and learns the dense attention; all else is frozen.

    python -m tasks.dsa_warmup --recipe tiny

The loss is the KL divergence of the indexer's softmax to the head-summed attention over all visible keys
(DeepSeek-V3.2 eq. 3; GLM-5 section 2.1.1).
"""

from dataclasses import dataclass, field

from model.loss import indexer_loss
from model.transformer import Transformer
from pipeline.stage import Context
from tasks.training.batches import Batch
from tasks.training.launch import run_training_stage
from tasks.training.objective import LossAndValues
from tasks.training.output import train_to_checkpoint
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model, packed_phase


def run(context: Context) -> dict[str, float]:
    """Train only the indexers of a dense checkpoint."""
    section, start = context.section, context.inputs["midtrain"]
    model = load_model(start, pick_device())
    model.add_indexer(context.seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".indexer." in name)
    objective = IndexerObjective(model, section.mtp_every_steps)
    phase = packed_phase(context, "warm-up", section.sequence_length, section.tokens)
    return train_to_checkpoint(
        context, model, objective, [phase], tokenizer_folder=start,
        flops_per_token=lambda length: model.config.forward_flops_per_token(length, indexer=True),
    )  # fmt: skip


@dataclass
class IndexerObjective:
    """KL of every layer's indexer, the MTP block's among them; in validation also the mass on its keys."""

    model: Transformer
    mtp_every_steps: int
    loads: list = field(default_factory=list, init=False)  # stays empty: no router is trained

    def kind(self, step: int) -> bool:
        """Whether the step has the MTP block's loss."""
        return step % self.mtp_every_steps == 0

    def __call__(self, batch: Batch, step: int) -> LossAndValues:
        loss = indexer_loss(self.model, batch.tokens_BT, start_BT=batch.start_BT, mtp=self.kind(step))
        return loss, {}

    def validate(self, batch: Batch) -> LossAndValues:
        out = self.model(batch.tokens_BT, start_BT=batch.start_BT, indexer_loss=True, measure=True)
        loss = out.indexer_kl_L.mean()
        selected, best, window = out.mass_L3.nanmean(0)
        return loss, {
            "dsa/indexer_kl": loss, "dsa/topk_mass": selected, "dsa/best_mass": best,
            "dsa/window_mass": window, "dsa/topk_recall": selected / best,
        }  # fmt: skip

    def after_step(self) -> dict[str, float]:
        return {}


if __name__ == "__main__":
    run_training_stage("dsa_warmup", run)
