"""Products whose result is symmetric, on CUDA: only the tiles on and under the diagonal are computed, and
each is also written to its mirrored place.

L matrices, A rows, K summed columns.
"""

import torch
import triton
import triton.language as tl

from model.kernels.newton_schulz import hopper

# From so many rows on, tiles have 128 rows: before, too few of those would be at work.
LARGE = 1024


def symmetric_product(
    left_LAK: torch.Tensor,
    right_LAK: torch.Tensor,
    *,
    alpha: float = 1.0,
    base_LAA: torch.Tensor | None = None,
    beta: float = 0.0,
    diagonal: float = 0.0,
    scale_L: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``scale * (diagonal * I + beta * base + alpha * left right^T)``, where that is symmetric: left and
    right are the same, or both are symmetric (K = A) and commute.

    Args:
        left_LAK, right_LAK: contiguous, of one dtype.
        base_LAA: symmetric; None for no such term.
        scale_L: float32, one factor for each matrix.

    Returns:
        (L, A, A) of ``dtype``, summed in float32. Outside the tiles on the diagonal, symmetric to the bit.
    """
    L, A, K = left_LAK.shape
    out = torch.empty(L, A, A, dtype=dtype, device=left_LAK.device)
    has_base, numbers = base_LAA is not None, (alpha, beta, diagonal)
    # An absent base is never read; any tensor stands for it.
    base_LAA = base_LAA if has_base else out
    if hopper.fits(left_LAK) and A >= LARGE:
        hopper.launch(left_LAK, right_LAK, base_LAA, scale_L, out, numbers, has_base)
        return out
    block = 128 if A >= LARGE else 64
    edge = triton.cdiv(A, block)
    _symmetric_kernel[(edge * (edge + 1) // 2, L)](
        left_LAK, right_LAK, base_LAA, scale_L, out, A, K, *numbers, HAS_BASE=has_base, BLOCK=block,
        BLOCK_K=64, num_warps=8 if block == 128 else 4, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit
def _symmetric_kernel(
    left, right, base, scale, out, A, K, alpha, beta, diagonal, HAS_BASE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    # Tile (i, j) with j <= i is number i (i + 1) / 2 + j.
    number = tl.program_id(0)
    i = ((tl.sqrt(8.0 * number.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > number, i - 1, i)
    i = tl.where((i + 1) * (i + 2) // 2 <= number, i + 1, i)
    j = number - i * (i + 1) // 2
    matrix = tl.program_id(1)
    row = i * BLOCK + tl.arange(0, BLOCK)
    column = j * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK_K)
    left += matrix.to(tl.int64) * A * K
    right += matrix.to(tl.int64) * A * K
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k in range(0, K, BLOCK_K):
        ok = (k + inner < K)[None, :]
        place = (k + inner)[None, :]
        x = tl.load(left + row[:, None] * K + place, mask=(row < A)[:, None] & ok, other=0.0)
        y = tl.load(right + column[:, None] * K + place, mask=(column < A)[:, None] & ok, other=0.0)
        acc = tl.dot(x, tl.trans(y), acc, input_precision="ieee")
    acc = acc * alpha + tl.where(row[:, None] == column[None, :], diagonal, 0.0)
    mask = (row < A)[:, None] & (column < A)[None, :]
    start = matrix.to(tl.int64) * A * A
    place = start + row[:, None] * A + column[None, :]
    if HAS_BASE:
        acc += beta * tl.load(base + place, mask=mask, other=0.0).to(tl.float32)
    value = (acc * tl.load(scale + matrix)).to(out.dtype.element_ty)
    tl.store(out + place, value, mask=mask)
    if i != j:
        mirrored = start + column[:, None] * A + row[None, :]
        tl.store(out + mirrored, tl.trans(value), mask=tl.trans(mask))
