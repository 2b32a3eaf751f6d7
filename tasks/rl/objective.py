"""What a step of reinforcement learning minimises, in the form that the training loop's accumulator takes."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from model.loss import language_loss
from model.transformer import Transformer
from tasks.rl.batches import PolicyBatch
from tasks.rl.losses.tokens import SampledTokens, Values

PolicyLoss = Callable[[torch.Tensor, SampledTokens], tuple[torch.Tensor, Values]]


@dataclass
class PolicyObjective:
    """A policy loss over packed rollouts. The indexer is frozen and its selection deterministic, experts are
    those of the rollout (paper section 3.2), so that trainer and engine compute the same probabilities.

    There is one update for each batch of rollouts, so the weights as the step began are the present ones.
    """

    model: Transformer
    loss: PolicyLoss
    loads: list[torch.Tensor] = field(default_factory=list, init=False)

    def kind(self, step: int) -> None:
        return None

    def __call__(self, batch: PolicyBatch, step: int) -> tuple[torch.Tensor, Values]:
        out = self.model(
            batch.tokens_BT, start_BT=batch.start_BT, attention="sparse", route_LBTK=batch.route_LBTK
        )
        current_BT = -language_loss(self.model, out.hidden_BTD, batch.target_BT)
        tokens = SampledTokens(batch.rollout_BT, current_BT.detach(), batch.advantage_BT, batch.weight_BT)
        loss, values = self.loss(current_BT, tokens)
        return loss * batch.scale, values

    def after_step(self) -> dict[str, float]:
        """The router's bias is left alone: balancing belongs to training on text."""
        return {}


def freeze_indexer(model: Transformer) -> None:
    for attention in model.attentions():
        if attention.indexer is not None:
            attention.indexer.requires_grad_(False)
