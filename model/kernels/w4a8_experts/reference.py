"""Routed SwiGLU experts in integers: weights of 4 or 8 bits, int8 tokens, int32 sums (paper section 5: W4A8).

Every operation on floats is a single one in float32 of a stated order, the exponential included, so that the
kernel gives the same bits as this file on another device, and a token's row does not depend on the batch.

M tokens, D hidden, E experts, F ffn width, G = 2F, K experts per token, A = M K choices, I input features.
"""

import torch

from model.kernels.int8_linear.reference import integer_product
from model.quantization.rounding import quantize_tokens

LOG2_E = 1.4426950408889634
# 2^f on [-1/2, 1/2], the highest power first; its relative error is below 6e-9.
EXP2 = (1.54614475e-4, 1.33908674e-3, 9.61805667e-3, 5.5503571e-2, 2.40226509e-1, 6.93147188e-1, 1.0)


def w4a8_experts(
    x_MD: torch.Tensor,
    index_MK: torch.Tensor,
    weight_MK: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scale_EG1: torch.Tensor,
    down: torch.Tensor,
    down_scale_ED1: torch.Tensor,
) -> torch.Tensor:
    """``sum_k weight_k * down_e(silu(gate_e x) * up_e x)`` with ``e = index_k``, as integers: both the token
    and the product of gate and up are rounded to int8 with a scale of their own (``quantize_tokens``).

    Args:
        x_MD: tokens, any float dtype.
        index_MK: int64 expert of each choice, distinct per token.
        weight_MK: factor of each choice, float32.
        gate_up: uint8 (E, G, D / 2) of ``pack_int4``, or int8 (E, G, D); rows ``[:F]`` are the gate.
        gate_up_scale_EG1: float32.
        down: uint8 (E, D, F / 2) of ``pack_int4``, or int8 (E, D, F).
        down_scale_ED1: float32.

    Returns:
        out_MD in x's dtype.
    """
    M, K = index_MK.shape
    token_MD, scale_M1 = quantize_tokens(x_MD)
    expert_A = index_MK.flatten()
    order_A = expert_A.argsort(stable=True)
    hidden_AG = x_MD.new_empty(M * K, gate_up.shape[1], dtype=torch.float32)
    out_AD = x_MD.new_empty(M * K, down.shape[1], dtype=torch.float32)
    first = 0
    for e, count in enumerate(torch.bincount(expert_A, minlength=len(down)).tolist()):
        if count:
            rows = order_A[first : first + count]
            token = rows // K
            total = integer_product(token_MD[token], gate_up[e])
            hidden_AG[rows] = total.float() * scale_M1[token] * gate_up_scale_EG1[e].t()
            inner, inner_scale = quantize_tokens(swiglu(hidden_AG[rows]))
            total = integer_product(inner, down[e])
            out_AD[rows] = total.float() * inner_scale * down_scale_ED1[e].t()
            first += count
    out_MKD = weight_MK.float().unsqueeze(-1) * out_AD.view(M, K, -1)
    out_MD = out_MKD[:, 0]
    for k in range(1, K):
        out_MD = out_MD + out_MKD[:, k]
    return out_MD.to(x_MD.dtype)


def swiglu(hidden: torch.Tensor) -> torch.Tensor:
    """``gate / (1 + exp(-gate)) * up`` of float32 (..., G)."""
    gate, up = hidden.chunk(2, -1)
    power = (gate * -LOG2_E).clamp(-126.0, 126.0)
    whole = power.round()
    fraction = power - whole
    exponential = torch.full_like(fraction, EXP2[0])
    for coefficient in EXP2[1:]:
        exponential = exponential * fraction + coefficient
    two_power = ((whole.to(torch.int32) + 127) << 23).view(torch.float32)
    return gate / (exponential * two_power + 1.0) * up
