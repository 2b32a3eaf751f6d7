"""The lightning indexer of DeepSeek sparse attention (DeepSeek-V3.2 eq. 1; GLM-5 paper section 2.1.1).

A few small heads score every earlier token for every query; the main attention then looks at the best K only.
B batch, T queries, D hidden, I indexer heads, J indexer dim.
"""

import torch
from torch import nn

from model.config import ModelConfig
from model.kernels.registry import rotate_part
from model.precision import wide_linear


class Indexer(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.heads, self.dim, self.rope_dim = config.index_heads, config.index_dim, config.qk_rope_dim
        self.q_up = nn.Linear(config.q_latent, self.heads * self.dim, bias=False)
        self.key = nn.Linear(config.hidden_size, self.dim, bias=False)
        self.key_norm = nn.LayerNorm(self.dim, eps=1e-6)
        self.head_weight = nn.Linear(config.hidden_size, self.heads, bias=False)

    def forward(
        self, x_BTD: torch.Tensor, q_latent: torch.Tensor, turn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (B, T, I, J), keys (B, T, J) and head weights (B, T, I) in float32, with the score's
        constants in them.

        Both inputs are detached: the indexer learns from its own loss only, and the trunk never from it.
        """
        x_BTD, q_latent = x_BTD.detach(), q_latent.detach()
        q_BTIJ = self._rotate(self.q_up(q_latent).unflatten(-1, (self.heads, self.dim)), turn)
        key_BTJ = self._rotate(self.key_norm(self.key(x_BTD)).to(q_BTIJ.dtype), turn)
        # The head weights decide the selection, so they stay float32 also under autocast, as in the released
        # model.
        weight_BTI = wide_linear(x_BTD, self.head_weight.weight)
        return q_BTIJ, key_BTJ, weight_BTI * (self.heads**-0.5 * self.dim**-0.5)

    def _rotate(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """The first ``rope_dim`` features carry the position."""
        return rotate_part(x, turn, first=0)
