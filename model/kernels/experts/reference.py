"""Routed experts: each token passes through its chosen SwiGLU experts (paper Table 10).

M tokens, D hidden, E experts, F ffn width, K experts per token.
"""

import torch
import torch.nn.functional as F

# Without gradients, up to this many multiplications per matrix of an expert, and while most experts are
# chosen by someone, computing every expert for every token takes less time than sorting the tokens.
FEW = 2**19


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
    E = len(down_EDF)
    if not torch.is_grad_enabled() and M * down_EDF[0].numel() < FEW and E <= 4 * M * K:
        return _every_expert(x_MD, index_MK, weight_MK, gate_up_EGD, down_EDF)
    order_A = index_MK.flatten().argsort(stable=True)  # A = M * K choices, sorted by expert
    place_A = torch.empty_like(order_A)
    place_A[order_A] = torch.arange(M * K, device=order_A.device)
    counts = torch.bincount(index_MK.flatten(), minlength=E).tolist()
    sorted_AD = _Reorder.apply(x_MD, order_A // K, place_A, K)
    outputs = []
    # Unbound once: indexing a stack expert by expert would build a gradient of the whole stack for each.
    experts = zip(sorted_AD.split(counts), gate_up_EGD.unbind(), down_EDF.unbind(), strict=True)
    for rows, gate_up, down in experts:
        if rows.shape[0]:
            gate, up = F.linear(rows, gate_up).chunk(2, dim=-1)
            outputs.append(F.linear(F.silu(gate) * up, down))
    chosen_MKD = _Reorder.apply(torch.cat(outputs), place_A, order_A, 1).view(M, K, -1)
    return (weight_MK.to(x_MD.dtype).unsqueeze(-1) * chosen_MKD).sum(1)


def _every_expert(x_MD, index_MK, weight_MK, gate_up_EGD, down_EDF) -> torch.Tensor:
    """The same, with weight zero for the experts that a token did not choose."""
    E = len(down_EDF)
    weight_ME = weight_MK.new_zeros(len(x_MD), E).scatter_(1, index_MK, weight_MK)
    gate, up = torch.bmm(x_MD.expand(E, -1, -1), gate_up_EGD.transpose(1, 2)).chunk(2, dim=-1)
    inner_EMF = F.silu(gate).mul_(up).mul_(weight_ME.to(x_MD.dtype).t().unsqueeze(-1))
    return torch.bmm(inner_EMF, down_EDF.transpose(1, 2)).sum(0)


class _Reorder(torch.autograd.Function):
    """``x[index]``, where every row of x is taken ``copies`` times and ``inverse`` leads back to x's order.

    The gradient is a gather too: quicker than scattering, and of the same bits every time.
    """

    @staticmethod
    def forward(ctx, x_MD, index_A, inverse_A, copies: int):
        ctx.save_for_backward(inverse_A)
        ctx.copies = copies
        return x_MD.index_select(0, index_A)

    @staticmethod
    def backward(ctx, grad_AD):
        (inverse_A,) = ctx.saved_tensors
        grad_AD = grad_AD.index_select(0, inverse_A)
        if ctx.copies > 1:
            grad_AD = grad_AD.unflatten(0, (-1, ctx.copies)).sum(1)
        return grad_AD, None, None, None
