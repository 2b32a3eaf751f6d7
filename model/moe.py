"""Feed-forward layers: SwiGLU, and experts balanced by a bias alone (paper Table 10; DeepSeek-V3).

B batch, T tokens, M = B * T, D hidden, E experts, F ffn width, K experts per token.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn

from model.config import ModelConfig
from model.kernels.registry import routed_experts
from model.precision import wide_linear
from model.quantization.rounding import fake_quantize


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, width: int):
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * width, bias=False)  # rows: gate, then up
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


@dataclass(eq=False)
class RouterSignals:
    """What balancing needs, computed for those who ask: decoding does not."""

    score_BTE: torch.Tensor
    index_BTK: torch.Tensor

    @cached_property
    def _count_BE(self) -> torch.Tensor:
        chosen_BTE = torch.zeros_like(self.score_BTE, dtype=torch.int32).scatter_(2, self.index_BTK, 1)
        return chosen_BTE.sum(1)  # int64; bincount would wait for the device

    @property
    def load_E(self) -> torch.Tensor:
        """int64: tokens that chose each expert."""
        return self._count_BE.sum(0)

    @property
    def balance(self) -> torch.Tensor:
        """DeepSeek-V3's sequence-wise balance loss before its weight, a scalar: per sequence, the experts'
        load shares times their mean scores.
        """
        _, T, E = self.score_BTE.shape
        share_BE = self._count_BE * (E / (self.index_BTK.shape[-1] * T))
        probability_BE = (self.score_BTE / self.score_BTE.sum(-1, keepdim=True)).mean(1)
        return (share_BE * probability_BE).sum(-1).mean()


class Router(nn.Module):
    """Sigmoid scores in float32. The bias has a part in choosing, none in weighing, so it has no gradient."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.top_k, self.scale = config.experts_per_token, config.routed_scale
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("bias", torch.zeros(config.num_experts, dtype=torch.float32))

    def forward(
        self, x_BTD: torch.Tensor, route_BTK: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, RouterSignals]:
        """Experts (M, K) and their weights (M, K), in descending order of biased score.

        ``route_BTK`` names the experts instead, where it is not -1: routing replay, for which the weights are
        this router's all the same and carry its gradient.
        """
        score_BTE = wide_linear(x_BTD, self.weight).sigmoid()
        index_BTK = (score_BTE.detach() + self.bias).topk(self.top_k, dim=-1).indices
        if route_BTK is not None:
            index_BTK = torch.where(route_BTK < 0, index_BTK, route_BTK.to(index_BTK.dtype))
        chosen = score_BTE.gather(-1, index_BTK)
        weight_BTK = chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * self.scale
        signals = RouterSignals(score_BTE, index_BTK)
        return index_BTK.flatten(0, 1), weight_BTK.flatten(0, 1), signals

    @torch.no_grad()
    def update_bias(self, load_E: torch.Tensor, step: float) -> None:
        """Move every expert's bias by ``step`` against its load error (auxiliary-loss-free balancing)."""
        load = load_E.to(self.bias.dtype)
        self.bias += step * torch.sign(load.mean() - load)


class MoE(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        D, E, width = config.hidden_size, config.num_experts, config.expert_ffn_size
        self.router = Router(config)
        self.gate_up = nn.Parameter(torch.empty(E, 2 * width, D))  # rows of an expert: gate, then up
        self.down = nn.Parameter(torch.empty(E, D, width))
        self.shared = SwiGLU(D, width * config.num_shared_experts)
        self.training_bits: int | None = None  # quantisation-aware training of the routed experts

    def forward(
        self, x_BTD: torch.Tensor, route_BTK: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, RouterSignals]:
        index_MK, weight_MK, signals = self.router(x_BTD, route_BTK)
        routed_MD = self._routed(x_BTD.flatten(0, 1), index_MK, weight_MK)
        return routed_MD.view_as(x_BTD) + self.shared(x_BTD), signals

    def train_quantized(self, bits: int) -> None:
        """See ``Transformer.train_quantized``."""
        self.training_bits = bits

    def _routed(self, x_MD, index_MK, weight_MK) -> torch.Tensor:
        gate_up, down = self.gate_up, self.down
        if self.training_bits is not None:
            gate_up, down = (fake_quantize(weight, self.training_bits) for weight in (gate_up, down))
        return routed_experts(x_MD, index_MK, weight_MK, gate_up, down)
