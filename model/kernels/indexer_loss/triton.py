"""Indexer losses on CUDA: the contract is ``reference``'s. Loss and gradients are computed together in the
forward pass, chunk by chunk of queries, so that nothing of size T x S outlives a chunk; the backward pass
only scales them.

Under the dense loss the mean of the attention over heads (the target) is written once for each chunk, in
float32, and overwritten by the gradient of the scores. Gradients to the indexer's keys are summed in a fixed
order there, and under the sparse loss with atomics unless ``torch.use_deterministic_algorithms`` asks for an
order.

B batch, T queries, S keys, N heads, H qk head dim, I indexer heads, J indexer dim, K top-k.
"""

import torch
import triton
import triton.language as tl

from model.kernels.sparse_mla.backward import sum_by_key
from model.kernels.sparse_mla.selection import flatten

_INTERPRET = triton.knobs.runtime.interpret
LOG2E = tl.constexpr(1.4426950408889634)
# Bytes of target (dense) or of key contributions (sparse) held at once.
WORKSPACE = 1 << 28
# Keys of a tile, warps and pipeline stages of the sparse loss.
SPARSE_KL = (64, 4, 2)


def dense_indexer_loss(q_BTNH, k_BSNH, scale, iq_BTIJ, ik_BSJ, iw_BTI, start_BT, stop_BT):
    """As ``reference.dense_indexer_loss``; memory grows with T + S."""
    start, stop = start_BT.int().contiguous(), stop_BT.int().contiguous()
    return _Loss.apply(
        iq_BTIJ, ik_BSJ, iw_BTI, _dense, (q_BTNH.detach(), k_BSNH.detach(), scale, start, stop)
    )


def sparse_indexer_loss(target_BTK, iq_BTIJ, ik_BSJ, iw_BTI, index_BTK):
    """As ``reference.sparse_indexer_loss``."""
    inputs = (target_BTK.detach().float().contiguous(), index_BTK.int().contiguous())
    return _Loss.apply(iq_BTIJ, ik_BSJ, iw_BTI, _sparse, inputs)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, iq, ik, iw, work, inputs):
        iq, ik, iw = iq.contiguous(), ik.contiguous(), iw.contiguous()
        loss_BT, valid_BT, grads = work(iq, ik, iw, *inputs)
        ctx.count = valid_BT.sum().clamp(min=1)
        ctx.save_for_backward(*grads)
        ctx.dtypes = iq.dtype, ik.dtype, iw.dtype
        return loss_BT.sum() / ctx.count

    @staticmethod
    def backward(ctx, grad_loss):
        factor = grad_loss / ctx.count
        grads = (
            (g.float() * factor).to(dtype) for g, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *grads, None, None


def _dense(iq, ik, iw, q, k, scale, start, stop):
    B, T, N, H = q.shape
    S, (I, J) = k.shape[1], iq.shape[2:]
    q, k = q.contiguous(), k.contiguous()
    device = q.device
    loss = torch.zeros(B, T, dtype=torch.float32, device=device)
    diq = torch.zeros_like(iq, dtype=torch.float32)
    diw = torch.zeros(B, T, I, dtype=torch.float32, device=device)
    dik = torch.zeros(B, S, J, dtype=torch.float32, device=device)
    if B * T == 0 or S == 0:
        return loss, stop > start, (diq, dik, diw)
    block_q = max(1, 128 // I)
    rows = max(128, WORKSPACE // (4 * S) // 128 * 128)
    target = torch.empty(min(rows, T), S, dtype=torch.float32, device=device)
    lse = torch.empty(min(rows, T), N, dtype=torch.float32, device=device)
    main = dict(N=N, H=H, BLOCK_H=max(16, triton.next_power_of_2(H)), UPCAST=_INTERPRET)
    index = dict(I=I, J=J, BQ=block_q, BS=64, UPCAST=_INTERPRET)
    for b in range(B):
        for t in range(0, T, rows):
            Tc = min(rows, T - t)
            seen = (start[b, t:], stop[b, t:])
            _lse_kernel[(triton.cdiv(Tc, 128), N)](
                q[b, t:], k[b], lse, *seen, scale, Tc, S, **main, BT=128, BS=64, num_warps=8, num_stages=3
            )
            _target_kernel[(triton.cdiv(S, 64), triton.cdiv(Tc, 128))](
                q[b, t:], k[b], lse, target, *seen, scale, Tc, S, **main, BT=128, BS=64, num_warps=8,
                num_stages=2
            )  # fmt: skip
            own = (iq[b, t:], ik[b], iw[b, t:], target, *seen)
            _kl_kernel[(triton.cdiv(Tc, block_q),)](
                *own, loss[b, t:], diq[b, t:], diw[b, t:], Tc, S, **index, num_warps=8, num_stages=2
            )
            _key_gradient_kernel[(triton.cdiv(S, 64),)](
                *own, dik[b], Tc, S, **index, num_warps=4, num_stages=2
            )
    return loss, stop > start, (diq, dik, diw)


@triton.jit
def _block(ptr, row, row_ok, stride, columns: tl.constexpr, WIDTH: tl.constexpr, UPCAST: tl.constexpr):
    column = tl.arange(0, WIDTH)
    tile = tl.load(
        ptr + row.to(tl.int64)[:, None] * stride + column[None, :],
        mask=row_ok[:, None] & (column < columns)[None, :], other=0.0,
    )  # fmt: skip
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def _lse_kernel(
    q, k, lse, start, stop, scale, T, S, N: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr,
    UPCAST: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Base-2 log-sum-exp of one head's scaled scores for BT queries."""
    n = tl.program_id(1)
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    first = tl.load(start + t, mask=t < T, other=2147483647)
    last = tl.load(stop + t, mask=t < T, other=0)
    q_tile = _block(q + n * H, t, t < T, N * H, H, BLOCK_H, UPCAST)
    m = tl.full([BT], -1e38, tl.float32)
    norm = tl.zeros([BT], tl.float32)
    for s0 in range(tl.min(first) // BS * BS, tl.max(last), BS):
        s = s0 + tl.arange(0, BS)
        k_tile = _block(k + n * H, s, s < S, N * H, H, BLOCK_H, UPCAST)
        score = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * LOG2E)
        seen = (s[None, :] >= first[:, None]) & (s[None, :] < last[:, None])
        score = tl.where(seen, score, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 1))
        norm = norm * tl.exp2(m - m_new) + tl.sum(tl.exp2(score - m_new[:, None]), 1)
        m = m_new
    tl.store(lse + t * N + n, m + tl.log2(tl.where(norm == 0.0, 1.0, norm)), mask=t < T)


@triton.jit
def _target_kernel(
    q, k, lse, target, start, stop, scale, T, S, N: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr,
    UPCAST: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Mean over heads of the attention probabilities of a tile; tiles that no query sees are left out."""
    t = tl.program_id(1) * BT + tl.arange(0, BT)
    s = tl.program_id(0) * BS + tl.arange(0, BS)
    first = tl.load(start + t, mask=t < T, other=2147483647)
    last = tl.load(stop + t, mask=t < T, other=0)
    heads = tl.where(
        (tl.min(first) < tl.program_id(0) * BS + BS) & (tl.max(last) > tl.program_id(0) * BS), N, 0
    )
    acc = tl.zeros([BT, BS], tl.float32)
    for n in range(heads):
        q_tile = _block(q + n * H, t, t < T, N * H, H, BLOCK_H, UPCAST)
        k_tile = _block(k + n * H, s, s < S, N * H, H, BLOCK_H, UPCAST)
        score = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * LOG2E)
        acc += tl.exp2(score - tl.load(lse + t * N + n, mask=t < T, other=0.0)[:, None])
    seen = (s[None, :] >= first[:, None]) & (s[None, :] < last[:, None])
    tl.store(target + t[:, None].to(tl.int64) * S + s[None, :], acc * (1.0 / N), mask=seen)


@triton.jit
def _indexer_tile(ik_tile, iq_tile, w, BQ: tl.constexpr, I: tl.constexpr):
    """Products (keys, queries x heads) and scores (keys, queries)."""
    dot = tl.dot(ik_tile, tl.trans(iq_tile), input_precision="ieee")
    part = tl.maximum(dot, 0.0) * w[None, :]
    return dot, tl.sum(tl.reshape(part, [ik_tile.shape[0], BQ, I]), axis=2)


@triton.jit
def _spread(value, BQ: tl.constexpr, I: tl.constexpr):
    """(keys, queries) -> (keys, queries x heads)."""
    rows: tl.constexpr = value.shape[0]
    return tl.reshape(tl.broadcast_to(tl.expand_dims(value, 2), [rows, BQ, I]), [rows, BQ * I])


@triton.jit
def _kl_kernel(
    iq, ik, iw, target, start, stop, loss, diq, diw, T, S,
    I: tl.constexpr, J: tl.constexpr, BQ: tl.constexpr, BS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """KL of BQ queries and its gradient to their indexer queries and weights; the score gradient replaces the
    target.
    """
    t = tl.program_id(0) * BQ + tl.arange(0, BQ)
    first = tl.load(start + t, mask=t < T, other=2147483647)
    last = tl.load(stop + t, mask=t < T, other=0)
    column = tl.program_id(0) * BQ * I + tl.arange(0, BQ * I)
    ok = column < T * I
    iq_tile = _block(iq, column, ok, J, J, J, UPCAST)
    w = tl.load(iw + column, mask=ok, other=0.0).to(tl.float32)
    lo = tl.min(first) // BS * BS
    hi = tl.max(last)
    m = tl.full([BQ], -1e38, tl.float32)
    norm = tl.zeros([BQ], tl.float32)
    cross = tl.zeros([BQ], tl.float32)
    mass = tl.zeros([BQ], tl.float32)
    for s0 in range(lo, hi, BS):
        s = s0 + tl.arange(0, BS)
        ik_tile = _block(ik, s, s < S, J, J, J, UPCAST)
        dot, score = _indexer_tile(ik_tile, iq_tile, w, BQ, I)
        seen = (s[:, None] >= first[None, :]) & (s[:, None] < last[None, :])
        p = tl.load(target + t[None, :].to(tl.int64) * S + s[:, None], mask=seen, other=0.0)
        cross += tl.sum(tl.where(p > 0.0, p * (tl.log(tl.where(p > 0.0, p, 1.0)) - score), 0.0), 0)
        mass += tl.sum(p, 0)
        score = tl.where(seen, score, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 0))
        norm = norm * tl.exp(m - m_new) + tl.sum(tl.exp(score - m_new[None, :]), 0)
        m = m_new
    lse = m + tl.log(tl.where(norm == 0.0, 1.0, norm))
    tl.store(loss + t, tl.where(norm == 0.0, 0.0, cross + mass * lse), mask=t < T)
    dq_tile = tl.zeros([BQ * I, J], tl.float32)
    dw = tl.zeros([BQ * I], tl.float32)
    for s0 in range(lo, hi, BS):
        s = s0 + tl.arange(0, BS)
        ik_tile = _block(ik, s, s < S, J, J, J, UPCAST)
        dot, score = _indexer_tile(ik_tile, iq_tile, w, BQ, I)
        seen = (s[:, None] >= first[None, :]) & (s[:, None] < last[None, :])
        place = target + t[None, :].to(tl.int64) * S + s[:, None]
        p = tl.load(place, mask=seen, other=0.0)
        grad = tl.where(seen, tl.exp(score - lse[None, :]) * mass[None, :] - p, 0.0)
        tl.store(place, grad, mask=seen)
        wide = _spread(grad, BQ, I)
        dw += tl.sum(wide * tl.maximum(dot, 0.0), 0)
        dx = tl.where(dot > 0.0, wide * w[None, :], 0.0).to(ik_tile.dtype)
        dq_tile = tl.dot(tl.trans(dx), ik_tile, dq_tile, input_precision="ieee")
    j = tl.arange(0, J)
    tl.store(diq + column.to(tl.int64)[:, None] * J + j[None, :], dq_tile, mask=ok[:, None])
    tl.store(diw + column, dw, mask=ok)


@triton.jit
def _key_gradient_kernel(
    iq, ik, iw, target, start, stop, dik, T, S,
    I: tl.constexpr, J: tl.constexpr, BQ: tl.constexpr, BS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Adds the chunk's part of the gradient to BS indexer keys, queries in order."""
    s = tl.program_id(0) * BS + tl.arange(0, BS)
    j = tl.arange(0, J)
    ik_tile = _block(ik, s, s < S, J, J, J, UPCAST)
    place = dik + s.to(tl.int64)[:, None] * J + j[None, :]
    acc = tl.load(place, mask=(s < S)[:, None], other=0.0)
    for t0 in range(0, T, BQ):
        t = t0 + tl.arange(0, BQ)
        first = tl.load(start + t, mask=t < T, other=2147483647)
        last = tl.load(stop + t, mask=t < T, other=0)
        seen = (s[:, None] >= first[None, :]) & (s[:, None] < last[None, :])
        column = t0 * I + tl.arange(0, BQ * I)
        iq_tile = _block(iq, column, column < T * I, J, J, J, UPCAST)
        w = tl.load(iw + column, mask=column < T * I, other=0.0).to(tl.float32)
        grad = tl.load(target + t[None, :].to(tl.int64) * S + s[:, None], mask=seen, other=0.0)
        dot = tl.dot(ik_tile, tl.trans(iq_tile), input_precision="ieee")
        dx = tl.where(dot > 0.0, _spread(grad, BQ, I) * w[None, :], 0.0).to(ik_tile.dtype)
        acc = tl.dot(dx, iq_tile, acc, input_precision="ieee")
    tl.store(place, acc, mask=(s < S)[:, None])


def _sparse(iq, ik, iw, target, index):
    B, T, K = index.shape
    S, (I, J) = ik.shape[1], iq.shape[2:]
    device, rows = iq.device, B * T
    loss = torch.zeros(B, T, dtype=torch.float32, device=device)
    diq = torch.zeros_like(iq, dtype=torch.float32)
    diw = torch.zeros(B, T, I, dtype=torch.float32, device=device)
    dik = torch.zeros(B * S, J, dtype=torch.float32, device=device)
    if rows == 0 or K == 0:
        return loss, (index >= 0).any(-1), (diq, dik.view(B, S, J), diw)
    flat, used = flatten(index, S)
    fixed = torch.are_deterministic_algorithms_enabled()
    chunk = max(1, min(rows, WORKSPACE // (K * J * iq.element_size()))) if fixed else rows
    each = torch.empty(chunk * K, J, dtype=iq.dtype, device=device) if fixed else dik
    tile, warps, stages = SPARSE_KL
    for row in range(0, rows, chunk):
        count = min(chunk, rows - row)
        _sparse_kl_kernel[(count,)](
            iq, ik, iw, flat, used, target, loss, diq, diw, each, row, K, I=I, J=J, BLOCK_I=max(16, I),
            BS=tile, ATOMIC=not fixed, UPCAST=_INTERPRET, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        if fixed:
            key, order = flat[row : row + count].reshape(-1).sort(stable=True)
            edge = torch.searchsorted(key, torch.arange(B * S + 1, device=device, dtype=torch.int32))
            sum_by_key(each, order, edge, dik)
    return loss, used.view(B, T) > 0, (diq, dik.view(B, S, J), diw)


@triton.jit
def _sparse_kl_kernel(
    iq, ik, iw, flat, used, target, loss, diq, diw, each, row0, K,
    I: tl.constexpr, J: tl.constexpr, BLOCK_I: tl.constexpr, BS: tl.constexpr, ATOMIC: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """KL of one query over its selected keys, its gradient to the indexer's query and weights, and its
    contribution to each selected key: added to ``each`` (keys, J), or written to (rows, K, J).
    """
    local = tl.program_id(0).to(tl.int64)
    row = row0 + local
    i = tl.arange(0, BLOCK_I)
    iq_tile = _block(iq + row * I * J, i, i < I, J, J, J, UPCAST)
    w = tl.load(iw + row * I + i, mask=i < I, other=0.0).to(tl.float32)
    lane = tl.arange(0, BS)
    last = tl.load(used + row)
    # Softmax and sums of each lane alone; the lanes meet behind the loop.
    m = tl.full([BS], -1e38, tl.float32)
    norm = tl.zeros([BS], tl.float32)
    cross = tl.zeros([BS], tl.float32)
    mass = tl.zeros([BS], tl.float32)
    for k0 in range(0, last, BS):
        s = tl.load(flat + row * K + k0 + lane, mask=k0 + lane < K, other=-1)
        ik_tile = _block(ik, tl.where(s >= 0, s, 0), s >= 0, J, J, J, UPCAST)
        dot = tl.dot(ik_tile, tl.trans(iq_tile), input_precision="ieee")
        score = tl.sum(tl.maximum(dot, 0.0) * w[None, :], 1)
        p = tl.load(target + row * K + k0 + lane, mask=s >= 0, other=0.0)
        cross += tl.where(p > 0.0, p * (tl.log(tl.where(p > 0.0, p, 1.0)) - score), 0.0)
        mass += p
        score = tl.where(s >= 0, score, float("-inf"))
        m_new = tl.maximum(m, score)
        norm = norm * tl.exp(m - m_new) + tl.exp(score - m_new)
        m = m_new
    top = tl.max(m)
    total = tl.sum(norm * tl.exp(m - top))
    share = tl.sum(mass)
    lse = top + tl.log(tl.where(total == 0.0, 1.0, total))
    tl.store(loss + row, tl.where(total == 0.0, 0.0, tl.sum(cross) + share * lse))
    dq = tl.zeros([J, BLOCK_I], tl.float32)
    dw = tl.zeros([BS, BLOCK_I], tl.float32)
    j = tl.arange(0, J)
    for k0 in range(0, last, BS):
        s = tl.load(flat + row * K + k0 + lane, mask=k0 + lane < K, other=-1)
        ik_tile = _block(ik, tl.where(s >= 0, s, 0), s >= 0, J, J, J, UPCAST)
        dot = tl.dot(ik_tile, tl.trans(iq_tile), input_precision="ieee")
        active = tl.maximum(dot, 0.0)
        score = tl.sum(active * w[None, :], 1)
        p = tl.load(target + row * K + k0 + lane, mask=s >= 0, other=0.0)
        grad = tl.where(s >= 0, tl.exp(score - lse) * share - p, 0.0)
        dw += active * grad[:, None]
        dx = tl.where(dot > 0.0, grad[:, None] * w[None, :], 0.0).to(ik_tile.dtype)
        dq = tl.dot(tl.trans(ik_tile), dx, dq, input_precision="ieee")
        piece = tl.dot(dx, iq_tile, input_precision="ieee")
        if ATOMIC:
            at = each + tl.where(s >= 0, s, 0).to(tl.int64)[:, None] * J + j[None, :]
            tl.atomic_add(at, piece, mask=(s >= 0)[:, None], sem="relaxed")
        else:
            at = each + (local * K + k0 + lane)[:, None] * J + j[None, :]
            tl.store(at, piece.to(each.dtype.element_ty), mask=(k0 + lane < K)[:, None])
    tl.store(diq + (row * I + i)[None, :] * J + j[:, None], dq, mask=(i < I)[None, :])
    tl.store(diw + row * I + i, tl.sum(dw, 0), mask=i < I)
