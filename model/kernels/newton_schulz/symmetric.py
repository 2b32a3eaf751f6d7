"""Products whose result is symmetric, on CUDA: only the tiles on and under the diagonal are computed, and
each is also written to its mirrored place.

L matrices, A rows, K summed columns.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Rows and columns of a tile, columns of a step, for matrices that fill the card.
TILE = (128, 256, 64)


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
        (L, A, A) of ``dtype``, summed in float32. Between tiles it is symmetric to the bit.
    """
    L, A, K = left_LAK.shape
    out = torch.empty(L, A, A, dtype=dtype, device=left_LAK.device)
    # An absent base is never read; any tensor stands for it.
    operands = (out if base_LAA is None else base_LAA, scale_L, out)
    numbers = (A, K, alpha, beta, diagonal)
    if _has_tensor_copies(left_LAK) and A >= 1024 and K * left_LAK.element_size() % 16 == 0:
        by_tensor_copies(left_LAK, right_LAK, operands, numbers, base_LAA is not None)
        return out
    block = 128 if A >= 1024 else 64
    edge = triton.cdiv(A, block)
    _by_pointers[(edge * (edge + 1) // 2, L)](
        left_LAK, right_LAK, *operands, *numbers, HAS_BASE=base_LAA is not None, BLOCK=block, BLOCK_K=64,
        num_warps=8 if block == 128 else 4, num_stages=3,
    )  # fmt: skip
    return out


def _has_tensor_copies(x: torch.Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= 9


def by_tensor_copies(left_LAK, right_LAK, operands, numbers, has_base: bool, tile=TILE) -> None:
    (L, A, K), (rows, columns, inner) = left_LAK.shape, tile
    left = TensorDescriptor.from_tensor(left_LAK.view(L * A, K), [rows, inner])
    right = TensorDescriptor.from_tensor(right_LAK.view(L * A, K), [columns, inner])
    tiles = sum(i * rows // columns + 1 for i in range(triton.cdiv(A, rows)))
    programs = L * tiles
    if left_LAK.is_cuda:
        programs = min(programs, torch.cuda.get_device_properties(left_LAK.device).multi_processor_count)
    _persistent[(programs,)](
        left, right, *operands, *numbers, tiles, L * tiles, programs,
        HAS_BASE=has_base, ROWS=rows, COLUMNS=columns, INNER=inner, num_warps=8, num_stages=4,
    )  # fmt: skip


@triton.jit
def _triangle(number, RATIO: tl.constexpr):
    """Row and column of tile ``number`` of a lower triangle whose tiles are RATIO times as wide as high: rows
    m RATIO to m RATIO + RATIO - 1 have m + 1 tiles each, and RATIO m (m + 1) / 2 come before them.
    """
    m = ((tl.sqrt(8.0 / RATIO * number.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    m = tl.where(RATIO * (m * (m + 1) // 2) > number, m - 1, m)
    m = tl.where(RATIO * ((m + 1) * (m + 2) // 2) <= number, m + 1, m)
    rest = number - RATIO * (m * (m + 1) // 2)
    return m * RATIO + rest // (m + 1), rest % (m + 1)


@triton.jit
def _store(
    acc, base, scale, out, matrix, row, column, A, alpha, beta, diagonal, mirrored, HAS_BASE: tl.constexpr
):  # fmt: skip
    acc = acc * alpha + tl.where(row[:, None] == column[None, :], diagonal, 0.0)
    mask = (row < A)[:, None] & (column < A)[None, :]
    start = matrix.to(tl.int64) * A * A
    place = start + row[:, None] * A + column[None, :]
    if HAS_BASE:
        acc += beta * tl.load(base + place, mask=mask, other=0.0).to(tl.float32)
    value = (acc * tl.load(scale + matrix)).to(out.dtype.element_ty)
    tl.store(out + place, value, mask=mask)
    if mirrored:
        across = start + column[:, None] * A + row[None, :]
        tl.store(out + across, tl.trans(value), mask=tl.trans(mask))


@triton.jit
def _by_pointers(
    left, right, base, scale, out, A, K, alpha, beta, diagonal, HAS_BASE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    i, j = _triangle(tl.program_id(0), 1)
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
    _store(acc, base, scale, out, matrix, row, column, A, alpha, beta, diagonal, i != j, HAS_BASE)


@triton.jit(do_not_specialize=["tiles", "total", "programs"])
def _persistent(
    left, right, base, scale, out, A, K, alpha, beta, diagonal, tiles, total, programs,
    HAS_BASE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    # The descriptors hold all matrices one under another. A tile that reaches over its matrix reads rows of
    # the next, and does not store what they give.
    for number in range(tl.program_id(0), total, programs):
        matrix = number // tiles
        i, j = _triangle(number % tiles, COLUMNS // ROWS)
        above = matrix * A
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, K, INNER):
            x = left.load([above + i * ROWS, k])
            y = right.load([above + j * COLUMNS, k])
            acc = tl.dot(x, tl.trans(y), acc, input_precision="ieee")
        row = i * ROWS + tl.arange(0, ROWS)
        column = j * COLUMNS + tl.arange(0, COLUMNS)
        # Tiles on the diagonal cover both halves of what they cross.
        mirrored = (j + 1) * COLUMNS <= i * ROWS
        _store(acc, base, scale, out, matrix, row, column, A, alpha, beta, diagonal, mirrored, HAS_BASE)
