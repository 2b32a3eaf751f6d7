"""What sparse MLA's kernels share: logarithms, and for the plain ones tiles of queries and of gathered rows.
Letters as in ``triton.py``.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


def low_part(X: int) -> int:
    """The largest power of two that is not above X: rows are read in two parts."""
    return 1 << (X.bit_length() - 1)


@triton.jit
def load_query(
    q, row, head, N, C: tl.constexpr, R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Latent part (heads, BLOCK_C) and rotated part (heads, BLOCK_R) of one query."""
    X: tl.constexpr = C + R
    c = tl.arange(0, BLOCK_C)
    r = tl.arange(0, BLOCK_R)
    base = q + (row.to(tl.int64) * N + head)[:, None] * X
    q_c = tl.load(base + c[None, :], mask=(head < N)[:, None] & (c < C)[None, :], other=0.0)
    q_r = tl.load(base + C + r[None, :], mask=(head < N)[:, None] & (r < R)[None, :], other=0.0)
    return q_c, q_r


@triton.jit
def load_keys(
    kv, s, base_row, C: tl.constexpr, R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Latent and rotated part of the rows ``s`` (negative: zeros)."""
    X: tl.constexpr = C + R
    c = tl.arange(0, BLOCK_C)
    r = tl.arange(0, BLOCK_R)
    ok = s >= 0
    base = kv + (base_row + tl.where(ok, s, 0))[:, None] * X
    k_c = tl.load(base + c[None, :], mask=ok[:, None] & (c < C)[None, :], other=0.0)
    k_r = tl.load(base + C + r[None, :], mask=ok[:, None] & (r < R)[None, :], other=0.0)
    return k_c, k_r
