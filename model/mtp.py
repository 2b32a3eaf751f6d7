"""Multi-token prediction: several steps on one shared block (paper section 2.1).

Step k reads at position t the previous step's hidden state (step 1: the trunk's) and the embedding of token t
+ k, and predicts token t + k + 1. All steps use the same weights, so the block that is stored once has been
trained on its own output, which is what drafting several tokens needs. Embedding and head are the trunk's.

Conventions of the served block (vLLM's): the trunk's state is taken after the final norm; the state handed
from step to step is taken before the block's own norm; the embedding is zeroed at position 0.

In a rotated model (model/quantization/rotation.py) the trunk's final norm has given its gain to the head, so
the state that arrives lacks it: ``correction`` puts it back, and the head that had taken up the block's own
gain is ``head``. Both are None otherwise. B batch, T tokens, D hidden.
"""

import torch
from torch import nn

from model.config import ModelConfig
from model.norm import RMSNorm


class MTP(nn.Module):
    def __init__(self, config: ModelConfig, block: nn.Module):
        super().__init__()
        D = config.hidden_size
        self.embed_norm = RMSNorm(D, config.norm_eps)
        self.hidden_norm = RMSNorm(D, config.norm_eps)
        self.join = nn.Linear(2 * D, D, bias=False)
        self.block = block
        self.norm = RMSNorm(D, config.norm_eps)
        self.correction: nn.Linear | None = None
        self.head: nn.Linear | None = None

    def separate(self, head: nn.Linear) -> None:
        """Give the block a head of its own, a copy of the trunk's, and a correction that changes nothing."""
        weight = head.weight
        D = weight.shape[1]
        self.head = nn.Linear(D, weight.shape[0], bias=False, device=weight.device, dtype=weight.dtype)
        self.correction = nn.Linear(D, D, bias=False, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            self.head.weight.copy_(weight)
            # nn.init.eye_ would load PyTorch's compiler on the meta device.
            self.correction.weight.zero_().diagonal().fill_(1)

    def receive(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """The trunk's state after its final norm as the first step reads it."""
        return hidden_BTD if self.correction is None else self.correction(hidden_BTD)

    def forward(self, hidden_BTD, embedded_BTD, first_BT, view, options):
        """One step.

        Args:
            hidden_BTD: the previous step's state, or what ``receive`` made of the trunk's.
            embedded_BTD: embedding of the token that follows the last one the state knows.
            first_BT: bool, True at position 0 of a document.
            view, options: as for a trunk block.

        Returns:
            the next state (B, T, D) before ``self.norm`` (the head reads it after), and the block's signals.
        """
        embedded_BTD = embedded_BTD.masked_fill(first_BT.unsqueeze(-1), 0.0)
        joined = torch.cat([self.embed_norm(embedded_BTD), self.hidden_norm(hidden_BTD)], -1)
        return self.block(self.join(joined), view, options)


def ahead(x_BT: torch.Tensor, steps: int, start_BT: torch.Tensor, fill: int) -> torch.Tensor:
    """``x[t + steps]`` at every t; ``fill`` where that is another document's or behind the row's end."""
    moved = torch.full_like(x_BT, fill)
    if steps >= x_BT.shape[1]:
        return moved
    same = start_BT[:, steps:] == start_BT[:, :-steps]
    moved[:, :-steps] = torch.where(same, x_BT[:, steps:], fill)
    return moved
