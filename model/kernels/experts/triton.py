"""Routed experts on CUDA: the contract is ``reference.routed_experts``.

The grouped products are ``torch._grouped_mm``; everything around them is fused: one pass gathers rows into
expert order, one applies SwiGLU, one returns to token order, weights the choices and sums them. No step waits
for the host, and every sum has a fixed order.

M tokens, D hidden, E experts, F ffn width, G = 2F, K experts per token, A = M K rows in expert order.
"""

import torch
import triton
import triton.language as tl

from model.kernels.experts import reference


def routed_experts(x_MD, index_MK, weight_MK, gate_up_EGD, down_EDF):
    """As the reference. The grouped products take bfloat16; other dtypes go to the reference."""
    D, F = down_EDF.shape[1:]
    if x_MD.dtype != torch.bfloat16 or D % 8 or F % 8 or x_MD.shape[0] == 0:
        return reference.routed_experts(x_MD, index_MK, weight_MK, gate_up_EGD, down_EDF)
    return _RoutedExperts.apply(x_MD.contiguous(), index_MK, weight_MK, gate_up_EGD, down_EDF)


class _RoutedExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index, weight, gate_up, down):
        M, K = index.shape
        experts = gate_up.shape[0]
        expert, order = index.reshape(-1).to(torch.int32).sort(stable=True)
        bounds = torch.arange(experts, device=x.device, dtype=torch.int32)
        offset = torch.searchsorted(expert, bounds, right=True).to(torch.int32)
        place = torch.empty_like(order)
        place[order] = torch.arange(M * K, device=x.device)
        rows = gather(x, order, K)
        hidden = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=offset)
        active = swiglu(hidden)
        result = torch._grouped_mm(active, down.transpose(1, 2), offs=offset)
        weight32 = weight.float().contiguous()
        out = combine(result, place, weight32)
        ctx.save_for_backward(x, weight32, gate_up, down, order, place, offset, hidden)
        ctx.K, ctx.weight_dtype = K, weight.dtype
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, gate_up, down, order, place, offset, hidden = ctx.saved_tensors
        K = ctx.K
        grad_rows = gather(grad.contiguous(), order, K)
        grad_active = torch._grouped_mm(grad_rows, down, offs=offset)
        scaled, grad_hidden, grad_weight = swiglu_backward(hidden, grad_active, weight.view(-1), order)
        rows = gather(x, order, K)
        grad_down = torch._grouped_mm(grad_rows.t(), scaled, offs=offset)
        grad_gate_up = torch._grouped_mm(grad_hidden.t(), rows, offs=offset)
        grad_x = combine(torch._grouped_mm(grad_hidden, gate_up, offs=offset), place, torch.ones_like(weight))
        return grad_x, None, grad_weight.view_as(weight).to(ctx.weight_dtype), grad_gate_up, grad_down


def gather(x_MD, order_A, K: int):
    """x[order // K]."""
    out = torch.empty(order_A.shape[0], x_MD.shape[1], dtype=x_MD.dtype, device=x_MD.device)
    _gather_kernel[(order_A.shape[0],)](x_MD, order_A, out, K, D=x_MD.shape[1], **_width(x_MD.shape[1]))
    return out


def swiglu(hidden_AG):
    """silu(gate) * up."""
    A, G = hidden_AG.shape
    out = torch.empty(A, G // 2, dtype=hidden_AG.dtype, device=hidden_AG.device)
    _swiglu_kernel[(A,)](hidden_AG, out, F=G // 2, **_width(G // 2))
    return out


def swiglu_backward(hidden_AG, grad_AF, weight_A, order_A):
    """From the unweighted gradient of the activation: (weight * activation, gradient of hidden, gradient of
    weight).
    """
    A, G = hidden_AG.shape
    scaled, grad_hidden = torch.empty_like(grad_AF), torch.empty_like(hidden_AG)
    grad_weight = torch.empty_like(weight_A)
    _swiglu_backward_kernel[(A,)](
        hidden_AG, grad_AF, weight_A, order_A, scaled, grad_hidden, grad_weight, F=G // 2, **_width(G // 2)
    )
    return scaled, grad_hidden, grad_weight


def combine(rows_AD, place_A, weight_MK):
    """sum_k weight[m, k] * rows[place[m * K + k]], in float32, in the order of k."""
    M, K = weight_MK.shape
    D = rows_AD.shape[1]
    out = torch.empty(M, D, dtype=rows_AD.dtype, device=rows_AD.device)
    _combine_kernel[(M,)](rows_AD, place_A, weight_MK, out, D=D, K=K, **_width(D))
    return out


def _width(columns: int) -> dict:
    block = min(4096, triton.next_power_of_2(columns))
    return dict(BLOCK=block, num_warps=max(1, min(8, block // 512)))


@triton.jit
def _gather_kernel(x, order, out, K, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(order + row) // K
    for d0 in tl.static_range(0, D, BLOCK):
        d = d0 + tl.arange(0, BLOCK)
        tl.store(out + row * D + d, tl.load(x + token * D + d, mask=d < D), mask=d < D)


@triton.jit
def _swiglu_kernel(hidden, out, F: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for f0 in tl.static_range(0, F, BLOCK):
        f = f0 + tl.arange(0, BLOCK)
        gate = tl.load(hidden + row * 2 * F + f, mask=f < F, other=0.0).to(tl.float32)
        up = tl.load(hidden + row * 2 * F + F + f, mask=f < F, other=0.0).to(tl.float32)
        tl.store(out + row * F + f, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=f < F)


@triton.jit
def _swiglu_backward_kernel(
    hidden, grad, weight, order, scaled, grad_hidden, grad_weight, F: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    choice = tl.load(order + row)
    w = tl.load(weight + choice)
    total = tl.zeros([], tl.float32)
    for f0 in tl.static_range(0, F, BLOCK):
        f = f0 + tl.arange(0, BLOCK)
        gate = tl.load(hidden + row * 2 * F + f, mask=f < F, other=0.0).to(tl.float32)
        up = tl.load(hidden + row * 2 * F + F + f, mask=f < F, other=0.0).to(tl.float32)
        g = tl.load(grad + row * F + f, mask=f < F, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        total += tl.sum(g * silu * up)
        g *= w
        d_gate = g * up * (sigmoid + silu * (1.0 - sigmoid))
        tl.store(scaled + row * F + f, (w * silu * up).to(scaled.dtype.element_ty), mask=f < F)
        tl.store(grad_hidden + row * 2 * F + f, d_gate.to(grad_hidden.dtype.element_ty), mask=f < F)
        tl.store(grad_hidden + row * 2 * F + F + f, (g * silu).to(grad_hidden.dtype.element_ty), mask=f < F)
    tl.store(grad_weight + choice, total)


@triton.jit
def _combine_kernel(rows, place, weight, out, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    for d0 in tl.static_range(0, D, BLOCK):
        d = d0 + tl.arange(0, BLOCK)
        acc = tl.zeros([BLOCK], tl.float32)
        for k in tl.static_range(K):
            at = tl.load(place + token * K + k)
            w = tl.load(weight + token * K + k)
            acc += w * tl.load(rows + at * D + d, mask=d < D, other=0.0).to(tl.float32)
        tl.store(out + token * D + d, acc.to(out.dtype.element_ty), mask=d < D)
