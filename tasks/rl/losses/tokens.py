"""What every policy loss reads of a micro-batch and gives back. B rows, T tokens."""

from dataclasses import dataclass

import torch

Values = dict[
    str, torch.Tensor
]  # what is logged: scalars, means over the sampled tokens unless named otherwise


@dataclass(frozen=True)
class SampledTokens:
    """float32 (B, T) each; only places where ``weight_BT`` is not 0 count.

    A place holds the sampled token that is predicted there. ``weight_BT`` carries the mean of the objective
    over the whole step, such as 1/(sequences x tokens of its sequence): a loss is the weighted sum over
    places, and those of a step's micro-batches add up to the step's.
    """

    rollout_BT: torch.Tensor  # log-probability in the engine that sampled it
    before_BT: torch.Tensor  # under the trainer's weights as the step began, without gradient
    advantage_BT: torch.Tensor
    weight_BT: torch.Tensor

    @property
    def counted_BT(self) -> torch.Tensor:
        return self.weight_BT != 0


def weighted(values_BT: torch.Tensor, tokens: SampledTokens) -> torch.Tensor:
    """The weighted sum over counted places; what stands elsewhere, be it nan, has no part in it."""
    return (values_BT.where(tokens.counted_BT, 0.0) * tokens.weight_BT).sum()


def share(chosen_BT: torch.Tensor, tokens: SampledTokens) -> torch.Tensor:
    """Of the counted tokens, the share for which ``chosen_BT`` holds."""
    counted = tokens.counted_BT
    return (chosen_BT & counted).sum() / counted.sum().clamp(min=1)


def mismatch_kl(tokens: SampledTokens) -> torch.Tensor:
    """KL(engine || trainer) in nats over the sampled tokens, by r - 1 - log r of r = trainer/engine.

    Never negative, and rounded far less than a plain difference of log-probabilities.
    """
    counted = tokens.counted_BT
    gap = (tokens.before_BT - tokens.rollout_BT).where(counted, 0.0).double()
    return (torch.expm1(gap) - gap).sum() / counted.sum().clamp(min=1)
