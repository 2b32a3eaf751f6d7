"""What a training stage minimises.

All stages but the indexer's warm-up share one objective: next token, MTP, expert balance and, under DSA, the
indexer's KL.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from model.chat.tokenizer import Tokenizer
from model.loss import IGNORE, Losses, training_losses
from model.transformer import Transformer
from pipeline.recipe.training import Balance, IndexerLoss, Mtp
from tasks.training.batches import Batch

LossAndValues = tuple[torch.Tensor, dict[str, torch.Tensor]]  # a scalar in nats, and what is logged beside it


class Objective(Protocol):
    """What the loop asks for."""

    loads: list[torch.Tensor]  # what micro-batches leave for ``after_step``

    def kind(self, step: int) -> Hashable:
        """What decides which operations a micro-batch of that step runs, beside its shape."""
        ...

    def __call__(self, batch: Batch, step: int) -> LossAndValues:
        """The loss to backpropagate in an optimizer step, counted from 0."""
        ...

    def validate(self, batch: Batch) -> LossAndValues:
        """The loss by which the stage is judged, on what is kept out of training."""
        ...

    def after_step(self) -> dict[str, float]:
        """What follows an optimizer step, and what is logged of it."""
        ...


@dataclass
class LanguageObjective:
    """Weighs the losses of a micro-batch and keeps the expert load until the optimizer step.

    Micro-batches may call it from several threads at once.
    """

    model: Transformer
    token_bytes_V: torch.Tensor  # int64, bytes of text that each token stands for
    balance: Balance
    mtp: Mtp | None = None
    attention: str = "dense"
    indexer_loss: IndexerLoss | None = None
    loads: list[torch.Tensor] = field(default_factory=list, init=False)  # (L, E), one a micro-batch

    def kind(self, step: int) -> tuple[bool, bool]:
        """Whether the step has the MTP loss, and whether the indexer's."""
        mtp = self.mtp is not None and step % self.mtp.every_steps == 0
        return mtp, self.indexer_loss is not None and step % self.indexer_loss.every_steps == 0

    def __call__(self, batch: Batch, step: int) -> LossAndValues:
        mtp, indexer = self.kind(step)
        losses = self._losses(batch, mtp, indexer)
        total = losses.lm + self.balance.sequence_loss * losses.balance
        values = {"train/lm_loss": losses.lm}
        if mtp:
            total = total + self.mtp.weight * losses.mtp
            values["train/mtp_loss"] = losses.mtp
        if indexer:
            total = total + self.indexer_loss.weight * losses.indexer_kl
            values["dsa/indexer_kl"] = losses.indexer_kl
        self.loads.append(losses.load_LE)
        return total, values

    def validate(self, batch: Batch) -> LossAndValues:
        """The next-token loss alone, and its bits per byte."""
        losses = self._losses(batch, False, False)
        trained = batch.target_BT[batch.target_BT != IGNORE]
        size = self.token_bytes_V.to(trained.device)[trained].sum()
        return losses.lm, {"val/bpb": losses.token_BT.double().sum() / size / math.log(2)}

    def after_step(self) -> dict[str, float]:
        """Move the routers' biases against the step's load (auxiliary-loss-free balancing)."""
        load_LE = sum(self.loads)
        self.loads.clear()
        self.model.update_balance(load_LE, self.balance.bias_step)
        used = load_LE[load_LE.sum(-1) > 0].float()
        if not len(used):
            return {}
        return {"moe/max_violation": float((used.amax(-1) / used.mean(-1) - 1).max())}

    def _losses(self, batch: Batch, mtp: bool, indexer_loss: bool) -> Losses:
        return training_losses(
            self.model, batch.tokens_BT, batch.target_BT, start_BT=batch.start_BT,
            attention=self.attention, indexer_loss=indexer_loss, mtp=mtp,
        )  # fmt: skip


def token_bytes(tokenizer: Tokenizer) -> torch.Tensor:
    """int64 (V,): bytes of text of each token; special tokens stand for none."""
    special = tokenizer.names_by_id
    sizes = [0 if i in special else len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)]
    return torch.tensor(sizes)
