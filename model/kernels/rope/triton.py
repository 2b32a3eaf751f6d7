"""Rotation on CUDA in one pass over the tensor: the contract is ``reference.rotate_part``. Features that are
not rotated pass through as if turned by nothing. The gradient is turned back.
"""

import torch
import triton
import triton.language as tl

from model.kernels.rope import reference


def rotate_part(x, turn_BTR, first: int):
    """As the reference, which takes widths that are no power of two, and float64."""
    if x.shape[-1] & (x.shape[-1] - 1) or x.shape[-1] < 16 or x.element_size() == 8:
        return reference.rotate_part(x, turn_BTR, first)
    return _RotatePart.apply(x, torch.view_as_real(turn_BTR).contiguous(), first)


class _RotatePart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, turn, first):
        ctx.save_for_backward(turn)
        ctx.first = first
        return _run(x, turn, first, 1.0)

    @staticmethod
    def backward(ctx, grad):
        return _run(grad, *ctx.saved_tensors, ctx.first, -1.0), None, None


def _run(x, turn, first: int, sign: float):
    x = x.contiguous()
    out = torch.empty_like(x)
    B, T, H = x.shape[0], x.shape[1], x.shape[-1]
    heads = x.shape[2] if x.dim() == 4 else 1
    if x.numel():
        _rotate_kernel[(B * T,)](
            x, turn, out, sign, first, T if turn.shape[0] == 1 else B * T, heads, R=2 * turn.shape[2], H=H,
            BLOCK_N=triton.next_power_of_2(heads), num_warps=max(1, min(8, heads * H // 512)),
        )  # fmt: skip
    return out


@triton.jit
def _rotate_kernel(
    x, turn, out, sign, first, turns, heads, R: tl.constexpr, H: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """All heads of one token; ``turns`` is how many tokens the table holds."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_N)
    ok = (head < heads)[:, None]
    place = (token * heads + head)[:, None] * H + tl.arange(0, H)[None, :]
    left, right = tl.split(tl.reshape(tl.load(x + place, mask=ok, other=0.0), [BLOCK_N, H // 2, 2]))
    pair = tl.arange(0, H // 2) - first // 2
    inside = (pair >= 0) & (pair < R // 2)
    row = turn + token % turns * R + 2 * pair
    cos = tl.load(row, mask=inside, other=1.0)[None, :]
    sin = tl.load(row + 1, mask=inside, other=0.0)[None, :] * sign
    left = left.to(tl.float32)
    right = right.to(tl.float32)
    turned = tl.join(left * cos - right * sin, left * sin + right * cos)
    tl.store(out + place, tl.reshape(turned, [BLOCK_N, H]).to(out.dtype.element_ty), mask=ok)
