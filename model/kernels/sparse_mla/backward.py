"""Gradients of sparse MLA on CUDA.

Per query: probabilities and score gradients are recomputed together with ``dq`` in one pass over the selected rows
and kept for a chunk of queries; a second kernel turns them into one contribution per (query, selected key). The
contributions to one key are then summed either in query order (sorted by key: the same bits every run) or with
atomics.
"""

import torch
import triton
import triton.language as tl

from model.kernels.sparse_mla.triton import LOG2E

_INTERPRET = triton.knobs.runtime.interpret
# Bytes of contributions held at once in the deterministic mode.
WORKSPACE = 1 << 30


def gradients(q, kv, index, out, lse, grad_out, scale, latent, deterministic, *, block_keys=64, warps=8, stages=1):
    """(dq_BTNX, dkv_BSX) in the inputs' dtypes, from the forward pass's inputs and results."""
    B, T, N, X = q.shape
    S, K, rows = kv.shape[1], index.shape[-1], B * T
    dq = torch.empty_like(q)
    dkv = torch.zeros(B * S, X, dtype=torch.float32, device=q.device)
    if rows == 0 or K == 0:
        return dq.zero_(), dkv.view(B, S, X).to(kv.dtype)
    delta = (out.float() * grad_out.float()).sum(-1)
    # Rows of all batch entries in one numbering, so that a chunk may span entries.
    offset_B = torch.arange(B, device=q.device, dtype=torch.int32).view(B, 1, 1) * S
    flat = torch.where(index >= 0, index + offset_B, -1).view(rows, K)
    held = 2 * K * N * q.element_size() + (K * X * q.element_size() if deterministic else 0)
    chunk = max(1, min(rows, WORKSPACE // held))
    p = torch.empty(chunk, N, K, dtype=q.dtype, device=q.device)
    ds = torch.empty(chunk, N, K, dtype=q.dtype, device=q.device)
    each = torch.empty(chunk * K, X, dtype=q.dtype, device=q.device) if deterministic else dkv
    shape = dict(
        C=latent, R=X - latent, BLOCK_C=triton.next_power_of_2(latent),
        BLOCK_R=max(16, triton.next_power_of_2(X - latent)), BLOCK_N=max(16, min(64, triton.next_power_of_2(N))),
        UPCAST=_INTERPRET,
    )  # fmt: skip
    for row in range(0, rows, chunk):
        count = min(chunk, rows - row)
        _query_kernel[(count, triton.cdiv(N, shape["BLOCK_N"]))](
            q, kv, flat, grad_out, lse, delta, dq, p, ds, row, scale, N, K, **shape,
            BLOCK_K=block_keys, num_warps=warps if shape["BLOCK_N"] == 64 else 4, num_stages=stages,
        )  # fmt: skip
        _key_kernel[(triton.cdiv(K, 128), count)](
            q, grad_out, p, ds, flat, each, row, N, K, **shape,
            BLOCK_K=128, COLUMNS=min(128, shape["BLOCK_C"]), ATOMIC=not deterministic, num_warps=8, num_stages=2,
        )  # fmt: skip
        if deterministic:
            key, order = flat[row : row + count].reshape(-1).sort(stable=True)
            edge = torch.searchsorted(key, torch.arange(B * S + 1, device=q.device, dtype=torch.int32))
            _sum_kernel[(B * S,)](each, order, edge, dkv, X=X, BLOCK_X=triton.next_power_of_2(X), num_warps=2)
    return dq, dkv.view(B, S, X).to(kv.dtype)


@triton.jit
def _query_kernel(
    q, kv, flat, grad_out, lse, delta, dq, p_out, ds_out, row0, scale, N, K,
    C: tl.constexpr, R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dq of one query; its probabilities and score gradients (already times scale), stored as (N, K)."""
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
    d = tl.load(delta + row * N + head, mask=head_ok, other=0.0)
    dq_c = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    dq_r = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    lane = tl.arange(0, BLOCK_K)
    for k0 in range(0, K, BLOCK_K):
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
        ds = (p * (dp - d[:, None]) * scale).to(k_c.dtype)
        dq_c = tl.dot(ds, k_c, dq_c, input_precision="ieee")
        dq_r = tl.dot(ds, k_r, dq_r, input_precision="ieee")
        place = (local * N + head)[:, None] * K + (k0 + lane)[None, :]
        ok = head_ok[:, None] & (k0 + lane < K)[None, :]
        tl.store(p_out + place, p.to(p_out.dtype.element_ty), mask=ok)
        tl.store(ds_out + place, ds.to(ds_out.dtype.element_ty), mask=ok)
    out = dq + (row * N + head)[:, None] * X
    tl.store(out + c[None, :], dq_c.to(dq.dtype.element_ty), mask=head_ok[:, None] & (c < C)[None, :])
    tl.store(out + r[None, :], dq_r.to(dq.dtype.element_ty), mask=head_ok[:, None] & (r < X)[None, :])


@triton.jit
def _tile(row_ptr, column, row_ok, columns, UPCAST: tl.constexpr):
    """Some columns of the rows at ``row_ptr`` (rows, 1); zeros outside."""
    tile = tl.load(row_ptr + column[None, :], mask=row_ok[:, None] & (column < columns)[None, :], other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def _key_kernel(
    q, grad_out, p, ds, flat, each, row0, N, K,
    C: tl.constexpr, R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr, ATOMIC: tl.constexpr,
):  # fmt: skip
    """Contribution of one query to BLOCK_K of its keys: ``ds^T q + p^T grad_out``, all heads summed."""
    X: tl.constexpr = C + R
    local = tl.program_id(1).to(tl.int64)
    row = row0 + local
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    s = tl.load(flat + row * K + k, mask=k < K, other=-1)
    keep = s >= 0
    target = tl.where(keep, s, 0).to(tl.int64) if ATOMIC else local * K + k
    out = each + target[:, None] * X
    weights = local * N * K + k[None, :]
    q_row = q + row * N * X
    for c0 in range(0, C, COLUMNS):
        column = c0 + tl.arange(0, COLUMNS)
        acc = tl.zeros([BLOCK_K, COLUMNS], tl.float32)
        acc = _weighted(acc, ds + weights, q_row, X, column, C, k, N, K, BLOCK_N, UPCAST)
        acc = _weighted(acc, p + weights, grad_out + row * N * C, C, column, C, k, N, K, BLOCK_N, UPCAST)
        _put(out + column[None, :], acc, keep[:, None] & (column < C)[None, :], ATOMIC)
    column = C + tl.arange(0, BLOCK_R)
    acc = tl.zeros([BLOCK_K, BLOCK_R], tl.float32)
    acc = _weighted(acc, ds + weights, q_row, X, column, X, k, N, K, BLOCK_N, UPCAST)
    _put(out + column[None, :], acc, keep[:, None] & (column < X)[None, :], ATOMIC)


@triton.jit
def _weighted(
    acc, weight_ptr, row_ptr, stride, column, columns, k, N, K, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr
):  # fmt: skip
    """``acc + sum_n weight[n, k] * row[n, column]``: (keys, columns)."""
    for n0 in range(0, N, BLOCK_N):
        head = n0 + tl.arange(0, BLOCK_N)
        weight = tl.load(weight_ptr + head[:, None] * K, mask=(head < N)[:, None] & (k < K)[None, :], other=0.0)
        if UPCAST:
            weight = weight.to(tl.float32)
        rows = _tile(row_ptr + head[:, None] * stride, column, head < N, columns, UPCAST)
        acc = tl.dot(tl.trans(weight), rows, acc, input_precision="ieee")
    return acc


@triton.jit
def _put(place, value, mask, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_add(place, value, mask=mask, sem="relaxed")
    else:
        tl.store(place, value.to(place.dtype.element_ty), mask=mask)


@triton.jit
def _sum_kernel(each, order, edge, dkv, X: tl.constexpr, BLOCK_X: tl.constexpr):
    """Adds to one key the contributions ``each[order[i]]`` for i between its edges, in that order."""
    key = tl.program_id(0).to(tl.int64)
    first = tl.load(edge + key)
    last = tl.load(edge + key + 1)
    x = tl.arange(0, BLOCK_X)
    if first < last:
        acc = tl.load(dkv + key * X + x, mask=x < X, other=0.0)
        for i0 in range(first, last, 4):
            for j in tl.static_range(4):  # four loads in flight
                at = tl.load(order + i0 + j, mask=i0 + j < last, other=0)
                piece = tl.load(each + at * X + x, mask=x < tl.where(i0 + j < last, X, 0), other=0.0)
                acc += piece.to(tl.float32)
        tl.store(dkv + key * X + x, acc, mask=x < X)
