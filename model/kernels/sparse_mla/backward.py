"""Gradients of sparse MLA on CUDA.

Per query: probabilities and score gradients are recomputed together with ``dq`` in one pass over the selected
rows and kept for a chunk of queries; a second kernel turns them into one contribution per (query, selected
key). The contributions to one key are then summed either in query order (sorted by key: the same bits every
run) or with atomics.
"""

import torch
import triton
import triton.language as tl

from model.kernels.sparse_mla.hopper import FILL, fits
from model.kernels.sparse_mla.hopper_backward import launch_query_gradient
from model.kernels.sparse_mla.rows import LOG2E, low_part
from model.kernels.sparse_mla.selection import flatten

_INTERPRET = triton.knobs.runtime.interpret
# Bytes held at once: contributions in the deterministic mode, else weights.
WORKSPACE, WORKSPACE_ATOMIC = 5 << 28, 1 << 28
# And where gradients of keys are too large for the cache: every chunk of queries goes through all of them.
WORKSPACE_BY_RANK = 1 << 30
# Gradients of keys up to this size stay in the cache while programs add to them in any order. Of more, those
# programs run together that add to keys of the same rank among the selected: sorted selections meet there.
IN_CACHE = 40 << 20
# Keys of a tile, warps and stages of the plain kernel, for less than 64 heads and from there on.
FEW_HEADS, MANY_HEADS = (64, 4, 2), (64, 8, 1)


def gradients(q, kv, index, out, lse, grad_out, scale, latent, deterministic, *, hopper=None):
    """(dq_BTNX, dkv_BSX) in the inputs' dtypes, from the forward pass's inputs and results."""
    B, T, N, X = q.shape
    S, K, rows = kv.shape[1], index.shape[-1], B * T
    dq = torch.empty_like(q)
    dkv = torch.zeros(B * S, X, dtype=torch.float32, device=q.device)
    if rows == 0 or K == 0:
        return dq.zero_(), dkv.view(B, S, X).to(kv.dtype)
    # Rows of all batch entries in one numbering, so that a chunk may span entries.
    flat, used = flatten(index, S)
    by_rank = not deterministic and dkv.numel() * dkv.element_size() > IN_CACHE
    held = 2 * K * N * q.element_size() + (K * X * q.element_size() if deterministic else 0)
    atomic = WORKSPACE_BY_RANK if by_rank else WORKSPACE_ATOMIC
    chunk = max(1, min(rows, (WORKSPACE if deterministic else atomic) // held))
    if FILL < chunk < rows:
        chunk -= chunk % FILL  # whole waves of programs
    # Score gradients of all heads, then their probabilities: the left side of one product.
    weights = torch.empty(chunk, 2 * N, K, dtype=q.dtype, device=q.device)
    each = torch.empty(chunk * K, X, dtype=q.dtype, device=q.device) if deterministic else dkv
    if hopper is None:
        hopper = fits(q, latent) and K % 16 == 0  # else it spills registers, or does not compile (K = 1)
    block_n, block_c = max(16, min(64, triton.next_power_of_2(N))), triton.next_power_of_2(latent)
    block_r = max(16, triton.next_power_of_2(X - latent))
    tile, warps, stages = FEW_HEADS if block_n < 64 else MANY_HEADS
    blocks = triton.cdiv(K, 128)
    for row in range(0, rows, chunk):
        count = min(chunk, rows - row)
        if hopper:
            launch_query_gradient(q, kv, flat, used, grad_out, out, lse, dq, weights, row, count, scale)
        else:
            _query_kernel[(count, triton.cdiv(N, block_n))](
                q, kv, flat, used, grad_out, out, lse, dq, weights, row, scale, N, K, C=latent, R=X - latent,
                BLOCK_C=block_c, BLOCK_R=block_r, BLOCK_N=block_n, BLOCK_K=tile, UPCAST=_INTERPRET,
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
        _key_kernel[(count, blocks) if by_rank else (blocks, count)](
            q, grad_out, weights, flat, each, row, N, K, C=latent, R=X - latent, UPCAST=_INTERPRET,
            BLOCK_N=max(16, triton.next_power_of_2(2 * N)), BLOCK_K=128, COLUMNS=64, ATOMIC=not deterministic,
            BY_RANK=by_rank, num_warps=8, num_stages=3,
        )  # fmt: skip
        if deterministic:
            key, order = flat[row : row + count].reshape(-1).sort(stable=True)
            edge = torch.searchsorted(key, torch.arange(B * S + 1, device=q.device, dtype=torch.int32))
            sum_by_key(each, order, edge, dkv)
    return dq, dkv.view(B, S, X).to(kv.dtype)


@triton.jit
def _query_kernel(
    q, kv, flat, used, grad_out, out, lse, dq, weights, row0, scale, N, K,
    C: tl.constexpr, R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dq of one query; into ``weights`` (2N, K) its score gradients (times scale) and probabilities."""
    X: tl.constexpr = C + R
    local = tl.program_id(0).to(tl.int64)
    row = row0 + local
    head = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    head_ok = head < N
    c = tl.arange(0, BLOCK_C)
    r = C + tl.arange(0, BLOCK_R)
    q_row = q + (row * N + head)[:, None] * X
    q_c = _tile(q_row, c, head_ok, C, UPCAST)
    q_r = _tile(q_row, r, head_ok, X, UPCAST)
    g = _tile(grad_out + (row * N + head)[:, None] * C, c, head_ok, C, UPCAST)
    lse2 = tl.load(lse + row * N + head, mask=head_ok, other=0.0) * LOG2E
    lse2 = tl.where(lse2 == float("-inf"), 0.0, lse2)
    result = _tile(out + (row * N + head)[:, None] * C, c, head_ok, C, UPCAST)
    delta = tl.sum(result.to(tl.float32) * g.to(tl.float32), 1)
    dq_c = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    dq_r = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    lane = tl.arange(0, BLOCK_K)
    for k0 in range(0, tl.load(used + row), BLOCK_K):
        s = tl.load(flat + row * K + k0 + lane, mask=k0 + lane < K, other=-1)
        present = s >= 0
        k_row = kv + tl.where(present, s, 0).to(tl.int64)[:, None] * X
        k_c = _tile(k_row, c, present, C, UPCAST)
        k_r = _tile(k_row, r, present, X, UPCAST)
        score = tl.dot(q_c, tl.trans(k_c), input_precision="ieee")
        score = tl.dot(q_r, tl.trans(k_r), score, input_precision="ieee")
        p = tl.exp2(score * (scale * LOG2E) - lse2[:, None])
        p = tl.where(present[None, :], p, 0.0)
        dp = tl.dot(g, tl.trans(k_c), input_precision="ieee")
        ds = (p * (dp - delta[:, None]) * scale).to(k_c.dtype)
        dq_c = tl.dot(ds, k_c, dq_c, input_precision="ieee")
        dq_r = tl.dot(ds, k_r, dq_r, input_precision="ieee")
        place = weights + (local * 2 * N + head)[:, None] * K + (k0 + lane)[None, :]
        ok = head_ok[:, None] & (k0 + lane < K)[None, :]
        tl.store(place, ds.to(weights.dtype.element_ty), mask=ok)
        tl.store(place + N * K, p.to(weights.dtype.element_ty), mask=ok)
    dq_row = dq + (row * N + head)[:, None] * X
    tl.store(dq_row + c[None, :], dq_c.to(dq.dtype.element_ty), mask=head_ok[:, None] & (c < C)[None, :])
    tl.store(dq_row + r[None, :], dq_r.to(dq.dtype.element_ty), mask=head_ok[:, None] & (r < X)[None, :])


@triton.jit
def _tile(row_ptr, column, row_ok, columns, UPCAST: tl.constexpr):
    """Some columns of the rows at ``row_ptr`` (rows, 1); zeros outside."""
    tile = tl.load(row_ptr + column[None, :], mask=row_ok[:, None] & (column < columns)[None, :], other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def _key_kernel(
    q, grad_out, weights, flat, each, row0, N, K,
    C: tl.constexpr, R: tl.constexpr, UPCAST: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr, ATOMIC: tl.constexpr, BY_RANK: tl.constexpr,
):  # fmt: skip
    """Contribution of one query to BLOCK_K of its keys, ``ds^T q + p^T grad_out`` summed over heads: one
    product with the heads counted twice. BY_RANK counts queries first, then blocks of keys.
    """
    X: tl.constexpr = C + R
    local = tl.program_id(0 if BY_RANK else 1).to(tl.int64)
    row = row0 + local
    k = tl.program_id(1 if BY_RANK else 0) * BLOCK_K + tl.arange(0, BLOCK_K)
    s = tl.load(flat + row * K + k, mask=k < K, other=-1)
    keep = s >= 0
    target = tl.where(keep, s, 0).to(tl.int64) if ATOMIC else local * K + k
    if tl.max(s) >= 0:
        twice = tl.arange(0, BLOCK_N)
        place = weights + (local * 2 * N + twice)[:, None] * K + k[None, :]
        weight = tl.load(place, mask=(twice < 2 * N)[:, None] & (k < K)[None, :], other=0.0)
        if UPCAST:
            weight = weight.to(tl.float32)
        right = tl.where(twice < N, q + (row * N + twice) * X, grad_out + (row * N + twice - N) * C)
        width = tl.where(twice < N, X, tl.where(twice < 2 * N, C, 0))
        for c0 in range(0, X, COLUMNS):
            column = c0 + tl.arange(0, COLUMNS)
            tile = tl.load(right[:, None] + column[None, :], mask=column[None, :] < width[:, None], other=0.0)
            if UPCAST:
                tile = tile.to(tl.float32)
            acc = tl.dot(tl.trans(weight), tile, input_precision="ieee")
            at = each + target[:, None] * X + column[None, :]
            mask = keep[:, None] & (column < X)[None, :]
            if ATOMIC:
                tl.atomic_add(at, acc, mask=mask, sem="relaxed")
            else:
                tl.store(at, acc.to(each.dtype.element_ty), mask=mask)


def sum_by_key(each, order, edge, total) -> None:
    """Adds to each row of ``total`` (rows, X) the contributions ``each[order[i]]`` between its edges."""
    rows, X = total.shape
    low = low_part(X)
    high = triton.next_power_of_2(X - low) if X > low else 0
    _sum_kernel[(rows,)](
        each, order, edge, total, X=X, LOW=low, HIGH=high, ROWS=8, num_warps=max(1, min(2, low // 256))
    )


@triton.jit
def _sum_kernel(
    each, order, edge, total, X: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Contributions of one key, ROWS at a time: as many loads are in flight. Each place sums every
    ROWS-th contribution and the places are added last: an order that depends on nothing but the list.
    """
    key = tl.program_id(0).to(tl.int64)
    first = tl.load(edge + key)
    last = tl.load(edge + key + 1)
    if first < last:
        lane = tl.arange(0, ROWS)
        low = tl.arange(0, LOW)
        acc = tl.zeros([ROWS, LOW], tl.float32)
        if HIGH > 0:
            high = LOW + tl.arange(0, HIGH)
            acc_high = tl.zeros([ROWS, HIGH], tl.float32)
        for i0 in range(first, last, ROWS):
            inside = i0 + lane < last
            row = each + tl.load(order + i0 + lane, mask=inside, other=0)[:, None] * X
            acc += tl.load(row + low[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
            if HIGH > 0:
                ok = inside[:, None] & (high < X)[None, :]
                acc_high += tl.load(row + high[None, :], mask=ok, other=0.0).to(tl.float32)
        place = total + key * X + low
        tl.store(place, tl.load(place) + tl.sum(acc, 0))
        if HIGH > 0:
            place = total + key * X + high
            tl.store(place, tl.load(place, mask=high < X, other=0.0) + tl.sum(acc_high, 0), mask=high < X)
