"""Grouped-query attention in MLA's place: the baseline that the paper's Table 1 compares MLA with."""

import torch
import torch.nn.functional as F
from torch import nn

from model.attention.mla import AttentionOptions, AttentionSignals
from model.attention.rope import rotate
from model.attention.visibility import Visibility
from model.config import ModelConfig

GROUPS = 2  # key-value heads


class GQA(nn.Module):
    """Dense causal attention with ``GROUPS`` key-value heads of MLA's head size and rotary dimensions.

    B batch, T queries, N heads, H head dim, R rope dim.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.heads, self.head_dim, self.rope_dim = config.num_heads, config.qk_dim, config.qk_rope_dim
        hidden = config.hidden_size
        self.q = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k = nn.Linear(hidden, GROUPS * self.head_dim, bias=False)
        self.v = nn.Linear(hidden, GROUPS * config.v_dim, bias=False)
        self.out = nn.Linear(self.heads * config.v_dim, hidden, bias=False)
        self.indexer = None

    def forward(
        self, x_BTD: torch.Tensor, view: Visibility, options: AttentionOptions, cache: None = None
    ) -> tuple[torch.Tensor, AttentionSignals]:
        q = self._rotated(self.q(x_BTD).unflatten(-1, (self.heads, -1)), view)
        k = self._rotated(self.k(x_BTD).unflatten(-1, (GROUPS, -1)), view)
        v = self.v(x_BTD).unflatten(-1, (GROUPS, -1))
        k, v = (t.repeat_interleave(self.heads // GROUPS, dim=2) for t in (k, v))
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2)), AttentionSignals()

    def _rotated(self, x_BTNH: torch.Tensor, view: Visibility) -> torch.Tensor:
        nope, rope = x_BTNH.split([self.head_dim - self.rope_dim, self.rope_dim], -1)
        return torch.cat([nope, rotate(rope, view.turn_BTR)], -1)
