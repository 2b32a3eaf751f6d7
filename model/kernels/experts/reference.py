"""Routed experts: each token passes through its chosen SwiGLU experts (paper Table 10).

M tokens, D hidden, E experts, F ffn width, K experts per token.
"""

import torch
import torch.nn.functional as F


def routed_experts(
    x_MD: torch.Tensor,
    index_MK: torch.Tensor,
    weight_MK: torch.Tensor,
    gate_up_EGD: torch.Tensor,
    down_EDF: torch.Tensor,
) -> torch.Tensor:
    """``sum_k weight_k * down_e(silu(gate_e x) * up_e x)`` with ``e = index_k``. Gradients to x, weight and
    both weights.

    Args:
        x_MD: tokens.
        index_MK: int64 expert of each choice, distinct per token.
        weight_MK: factor of each choice, float32.
        gate_up_EGD: G = 2F; rows ``[:F]`` are the gate, rows ``[F:]`` the up projection.
        down_EDF: the down projection.

    Returns:
        out_MD in x's dtype. The order of summation is fixed, so a repeated call gives the same bits.
    """
    M, K = index_MK.shape
    expert_A = index_MK.reshape(-1)
    order_A = expert_A.argsort(stable=True)
    counts = torch.bincount(expert_A, minlength=gate_up_EGD.shape[0]).tolist()
    rows_AD = x_MD[order_A // K]
    outputs = []
    for e, rows in enumerate(rows_AD.split(counts)):
        if rows.shape[0]:
            gate, up = F.linear(rows, gate_up_EGD[e]).chunk(2, dim=-1)
            outputs.append(F.linear(F.silu(gate) * up, down_EDF[e]))
    # Back to token order, so that the weighted sum over choices is a small batched product.
    place_A = torch.empty_like(order_A)
    place_A[order_A] = torch.arange(M * K, device=order_A.device)
    chosen_MKD = torch.cat(outputs)[place_A].view(M, K, -1)
    return (weight_MK.to(x_MD.dtype).unsqueeze(1) @ chosen_MKD).squeeze(1)
