"""Batched Newton-Schulz on CUDA: the contract is ``reference.newton_schulz``.

``X X^T`` and the polynomial in it are symmetric: only the tiles on and under the diagonal are computed, and
each is also written to its mirrored place. The last product of a step is cuBLAS's.

L matrices, A rows, B columns.
"""

import torch
import triton
import triton.language as tl

from model.kernels.newton_schulz.reference import COEFFICIENTS, STEPS

_INTERPRET = triton.knobs.runtime.interpret


@torch.no_grad()
def newton_schulz(x_LAB: torch.Tensor) -> torch.Tensor:
    """As the reference, in bfloat16."""
    a, b, c = COEFFICIENTS
    wide = x_LAB.shape[-2] <= x_LAB.shape[-1]
    x = x_LAB if wide else x_LAB.transpose(-2, -1)
    inverse = 1.0 / torch.linalg.matrix_norm(x.float(), keepdim=True).clamp(min=1e-20)
    kind = torch.float32 if _INTERPRET else torch.bfloat16
    x = torch.mul(x, inverse, out=torch.empty(x.shape, dtype=kind, device=x.device))
    gram = torch.empty(x.shape[0], x.shape[1], x.shape[1], dtype=kind, device=x.device)
    poly = torch.empty_like(gram)
    for _ in range(STEPS):
        symmetric_product(x, gram, gram, 0.0, 1.0, 0.0)
        symmetric_product(gram, gram, poly, b, c, a)
        x = poly @ x  # a x + (b G + c G^2) x
    return (x if wide else x.transpose(-2, -1)).to(x_LAB.dtype)


def symmetric_product(x_LAB, base_LAA, out_LAA, beta: float, alpha: float, diagonal: float) -> None:
    """``out = diagonal * I + beta * base + alpha * x x^T``; base symmetric, and unread if beta is 0."""
    L, A, B = x_LAB.shape
    block = 128 if A >= 1024 else 64
    edge = triton.cdiv(A, block)
    _symmetric_kernel[(edge * (edge + 1) // 2, L)](
        x_LAB, base_LAA, out_LAA, A, B, beta, alpha, diagonal,
        HAS_BASE=beta != 0.0, BLOCK=block, BLOCK_B=64, num_warps=8 if block == 128 else 4, num_stages=3,
    )  # fmt: skip


@triton.jit
def _symmetric_kernel(
    x, base, out, A, B, beta, alpha, diagonal, HAS_BASE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_B:
    tl.constexpr
):  # fmt: skip
    # Tile (i, j) with j <= i is number i (i + 1) / 2 + j.
    number = tl.program_id(0)
    i = ((tl.sqrt(8.0 * number.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > number, i - 1, i)
    i = tl.where((i + 1) * (i + 2) // 2 <= number, i + 1, i)
    j = number - i * (i + 1) // 2
    matrix = tl.program_id(1).to(tl.int64)
    row = i * BLOCK + tl.arange(0, BLOCK)
    column = j * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK_B)
    x += matrix * A * B
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k in range(0, B, BLOCK_B):
        ok = (k + inner < B)[None, :]
        left = tl.load(x + row[:, None] * B + (k + inner)[None, :], mask=(row < A)[:, None] & ok, other=0.0)
        right = tl.load(
            x + column[:, None] * B + (k + inner)[None, :], mask=(column < A)[:, None] & ok, other=0.0
        )
        acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
    acc = acc * alpha + tl.where(row[:, None] == column[None, :], diagonal, 0.0)
    mask = (row < A)[:, None] & (column < A)[None, :]
    place = matrix * A * A + row[:, None] * A + column[None, :]
    if HAS_BASE:
        acc += beta * tl.load(base + place, mask=mask, other=0.0).to(tl.float32)
    value = acc.to(out.dtype.element_ty)
    tl.store(out + place, value, mask=mask)
    if i != j:
        mirrored = matrix * A * A + column[:, None] * A + row[None, :]
        tl.store(out + mirrored, tl.trans(value), mask=tl.trans(mask))
