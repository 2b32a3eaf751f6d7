"""DSA dense warm-up: the lightning indexer is added and learns the dense attention; all else is frozen.

    python -m tasks.dsa_warmup --recipe tiny

The loss is the KL divergence of the indexer's softmax to the head-summed attention over all visible keys
(DeepSeek-V3.2 eq. 3; GLM-5 section 2.1.1).
"""

import torch

from model.loss import indexer_loss
from model.transformer import Transformer
from pipeline.stage import Context, run_stage
from tasks.training.batches import Batch, PackedBatches
from tasks.training.loop import Job, Phase, steps_for, train
from tasks.training.output import write_checkpoint
from tasks.training.setup import load_model, make_optimizer, pick_device, split_validation


def run(context: Context) -> dict[str, float]:
    """Train only the indexers of a dense checkpoint."""
    section, start = context.section, context.inputs["midtrain"]
    device = pick_device()
    model = load_model(start, device)
    model.add_indexer(context.seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".indexer." in name)
    packed = PackedBatches.read(context.inputs["midtrain_data"], section.sequence_length)
    batches, validation = split_validation(packed, section.validation_rows, section.micro_batch)
    steps = steps_for(section, section.tokens, section.sequence_length)
    job = Job(
        context, section, model, make_optimizer(model, section.optimizer),
        IndexerObjective(model, section.mtp_fraction), [Phase("warm-up", batches, steps, validation)], device,
        flops_per_token=lambda length: model.config.forward_flops_per_token(length, indexer=True),
    )  # fmt: skip
    values = train(job)
    write_checkpoint(context, model, start)
    return values


class IndexerObjective:
    """KL of every layer's indexer, the MTP block's among them; in validation also the mass on its keys."""

    def __init__(self, model: Transformer, mtp_fraction: float):
        self.model = model
        self.mtp_fraction = mtp_fraction

    def __call__(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if not self.model.training:
            return self._measure(batch)
        loss = indexer_loss(
            self.model, batch.tokens_BT, start_BT=batch.start_BT, mtp_fraction=self.mtp_fraction
        )
        return loss, {}

    def _measure(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        out = self.model(batch.tokens_BT, start_BT=batch.start_BT, indexer_loss=1.0, measure=True)
        loss = out.indexer_kl_L.mean()
        selected, best, window = out.mass_L3.nanmean(0)
        return loss, {
            "dsa/indexer_kl": loss, "dsa/topk_mass": selected, "dsa/best_mass": best,
            "dsa/window_mass": window, "dsa/topk_recall": selected / best,
        }  # fmt: skip


if __name__ == "__main__":
    run_stage("dsa_warmup", run)
