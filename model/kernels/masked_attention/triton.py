"""Attention over ranges and selections of keys on CUDA: the contract is ``reference.masked_attention``.

Tiles of keys that no query of a block sees are skipped, so packed documents cost what they hold. Selections
are read as bits, a word for 32 keys. Every sum has a fixed order: the gradients of queries, of keys and of
values come from kernels whose programs own what they sum: one each, or on Hopper one for keys and values.

B batch, T queries, S keys, N heads, H qk head dim, V value head dim, K selected keys, W words of bits.
"""

import torch
import triton
import triton.language as tl

from model.kernels.masked_attention import reference
from model.kernels.masked_attention.hopper import fits, launch_key_value_gradients

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Queries and keys of a tile, warps and pipeline stages of each kernel.
FORWARD = (128, 64, 8, 2)
QUERY = (64, 32, 4, 3)
KEY = (32, 128, 8, 2)
VALUE = (32, 128, 8, 2)


def masked_attention(q_BTNH, k_BSNH, v_BSNV, scale, start_BT, stop_BT, index_BTK=None):
    """As the reference, which takes head dims that are no power of two from 16 on, wide float32, float64."""
    widest = {2: 256, 4: 64}.get(q_BTNH.element_size(), 0)
    for size in (q_BTNH.shape[-1], v_BSNV.shape[-1]):
        if size < 16 or size & (size - 1) or size > widest:
            return reference.masked_attention(q_BTNH, k_BSNH, v_BSNV, scale, start_BT, stop_BT, index_BTK)
    start, stop = start_BT.int().contiguous(), stop_BT.int().contiguous()
    bits = None if index_BTK is None else selection_bits(index_BTK, k_BSNH.shape[1])
    return _Attention.apply(q_BTNH, k_BSNH, v_BSNV, scale, start, stop, bits)


def selection_bits(index_BTK: torch.Tensor, keys: int) -> torch.Tensor:
    """int32 (B, T, W): bit ``s % 32`` of word ``s // 32`` says whether key s is selected."""
    B, T, K = index_BTK.shape
    words = triton.cdiv(keys, 128) * 4  # whole tiles
    bits = torch.zeros(B, T, words, dtype=torch.int32, device=index_BTK.device)
    if index_BTK.numel():
        _bits_kernel[(B * T,)](index_BTK.contiguous(), bits, K, words, BLOCK=triton.next_power_of_2(K))
    return bits


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, start, stop, bits):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        (B, T, N, H), S, V = q.shape, k.shape[1], v.shape[-1]
        out = torch.empty(B, T, N, V, dtype=q.dtype, device=q.device)
        lse = torch.empty(B, T, N, dtype=torch.float32, device=q.device)
        queries, keys, warps, stages = FORWARD
        if q.numel():
            _forward_kernel[(triton.cdiv(T, queries), B * N)](
                q, k, v, out, lse, start, stop, *_bits(bits, q), scale * LOG2E.value, T, S, N,
                H=H, V=V, BT=queries, BS=keys, SELECTED=bits is not None, num_warps=warps, num_stages=stages,
            )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse, start, stop, bits)
        ctx.scale = scale
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, grad, _):
        q, k, v, out, lse, start, stop, bits = ctx.saved_tensors
        (B, T, N, H), S, V = q.shape, k.shape[1], v.shape[-1]
        grad = grad.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(lse)
        if not q.numel() or not k.numel():
            return dq.zero_(), dk.zero_(), dv.zero_(), None, None, None, None
        seen = (start, stop, *_bits(bits, q), ctx.scale, T, S, N)
        sizes = dict(H=H, V=V, SELECTED=bits is not None)
        queries, keys, warps, stages = QUERY
        _query_gradient_kernel[(triton.cdiv(T, queries), B * N)](
            q, k, v, out, grad, lse, delta, dq, *seen, **sizes, BT=queries, BS=keys, num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
        if fits(q, v):
            launch_key_value_gradients(q, k, v, grad, lse, delta, dk, dv, start, stop, bits, ctx.scale)
            return dq, dk, dv, None, None, None, None
        queries, keys, warps, stages = KEY
        _key_gradient_kernel[(triton.cdiv(S, keys), B * N)](
            q, k, v, grad, lse, delta, dk, *seen, **sizes, BT=queries, BS=keys, num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
        queries, keys, warps, stages = VALUE
        _value_gradient_kernel[(triton.cdiv(S, keys), B * N)](
            q, k, grad, lse, dv, *seen, **sizes, BT=queries, BS=keys, num_warps=warps, num_stages=stages
        )
        return dq, dk, dv, None, None, None, None


def _bits(bits, stand_in):
    """The bits and their words a query; any pointer where there are none."""
    return (stand_in, 0) if bits is None else (bits, bits.shape[-1])


@triton.jit
def _bits_kernel(index, bits, K, words, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    s = tl.load(index + row * K + lane, mask=lane < K, other=-1)
    tl.atomic_or(bits + row * words + s // 32, 1 << (s % 32), mask=s >= 0, sem="relaxed")


@triton.jit
def _rows(ptr, row, row_ok, stride, COLUMNS: tl.constexpr):
    """Rows (rows, COLUMNS) at ``ptr``; zeros where there is none."""
    place = ptr + row.to(tl.int64)[:, None] * stride + tl.arange(0, COLUMNS)[None, :]
    return tl.load(place, mask=row_ok[:, None], other=0.0)


@triton.jit
def _range(start, stop, t, T):
    """First and last + 1 seen key of the queries ``t``; empty behind the last query."""
    first = tl.load(start + t, mask=t < T, other=2147483647)
    last = tl.load(stop + t, mask=t < T, other=0)
    return first, last


@triton.jit
def _chosen(word, row_ok, BS: tl.constexpr):
    """Which of BS keys are selected, (queries, keys), from the words that start at the pointers ``word``."""
    lane = tl.arange(0, BS)
    held = tl.load(word, mask=row_ok, other=0)[:, None]
    for i in tl.static_range(1, BS // 32):
        held = tl.where((lane // 32)[None, :] == i, tl.load(word + i, mask=row_ok, other=0)[:, None], held)
    return (held >> (lane % 32)[None, :]) & 1 != 0


@triton.jit
def _chosen_by_key(word, row_ok, BS: tl.constexpr):
    """The same, (keys, queries)."""
    lane = tl.arange(0, BS)
    held = tl.load(word, mask=row_ok, other=0)[None, :]
    for i in tl.static_range(1, BS // 32):
        held = tl.where((lane // 32)[:, None] == i, tl.load(word + i, mask=row_ok, other=0)[None, :], held)
    return (held >> (lane % 32)[:, None]) & 1 != 0


@triton.jit
def _forward_kernel(
    q, k, v, out, lse, start, stop, bits, words, scale_log2, T, S, N,
    H: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, SELECTED: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(1) // N).to(tl.int64)
    n = tl.program_id(1) % N
    # Later queries see more keys: they start first.
    t = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT + tl.arange(0, BT)
    first, last = _range(start + b * T, stop + b * T, t, T)
    q_tile = _rows(q + (b * T * N + n) * H, t, t < T, N * H, H)
    k += (b * S * N + n) * H
    v += (b * S * N + n) * V
    lane = tl.arange(0, BS)
    m = tl.full([BT], float("-inf"), tl.float32)
    norm = tl.zeros([BT], tl.float32)
    acc = tl.zeros([BT, V], tl.float32)
    for s0 in range(tl.min(first) // BS * BS, tl.max(last), BS):
        s = s0 + lane
        k_tile = _rows(k, s, s < S, N * H, H)
        score = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale_log2
        seen = (s[None, :] >= first[:, None]) & (s[None, :] < last[:, None])
        if SELECTED:
            seen = seen & _chosen(bits + (b * T + t) * words + s0 // 32, t < T, BS)
        score = tl.where(seen, score, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key so far: exp2(-inf - 0) = 0
        p = tl.exp2(score - safe[:, None])
        shrink = tl.exp2(m - safe)
        norm = norm * shrink + tl.sum(p, 1)
        v_tile = _rows(v, s, s < S, N * V, V)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    empty = norm == 0.0
    acc = acc / tl.where(empty, 1.0, norm)[:, None]
    place = (b * T + t) * N + n
    tl.store(
        out + place[:, None] * V + tl.arange(0, V)[None, :],
        acc.to(out.dtype.element_ty),
        mask=(t < T)[:, None],
    )
    log = tl.where(empty, float("-inf"), (m + tl.log2(tl.where(empty, 1.0, norm))) * LN2)
    tl.store(lse + place, log, mask=t < T)


@triton.jit
def _query_gradient_kernel(
    q, k, v, out, grad, lse, delta, dq, start, stop, bits, words, scale, T, S, N,
    H: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, SELECTED: tl.constexpr,
):  # fmt: skip
    """Gradient of BT queries of a head, and ``delta``, gradient times output in sum, for the keys' kernel."""
    b = (tl.program_id(1) // N).to(tl.int64)
    n = tl.program_id(1) % N
    t = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT + tl.arange(0, BT)
    first, last = _range(start + b * T, stop + b * T, t, T)
    q_tile = _rows(q + (b * T * N + n) * H, t, t < T, N * H, H)
    g_tile = _rows(grad + (b * T * N + n) * V, t, t < T, N * V, V)
    o_tile = _rows(out + (b * T * N + n) * V, t, t < T, N * V, V)
    place = (b * T + t) * N + n
    mean = tl.sum(o_tile.to(tl.float32) * g_tile.to(tl.float32), 1)
    tl.store(delta + place, mean, mask=t < T)
    log = tl.load(lse + place, mask=t < T, other=0.0) * LOG2E
    log = tl.where(log == float("-inf"), 0.0, log)
    k += (b * S * N + n) * H
    v += (b * S * N + n) * V
    lane = tl.arange(0, BS)
    acc = tl.zeros([BT, H], tl.float32)
    for s0 in range(tl.min(first) // BS * BS, tl.max(last), BS):
        s = s0 + lane
        k_tile = _rows(k, s, s < S, N * H, H)
        v_tile = _rows(v, s, s < S, N * V, V)
        score = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * LOG2E)
        dp = tl.dot(g_tile, tl.trans(v_tile), input_precision="ieee")
        seen = (s[None, :] >= first[:, None]) & (s[None, :] < last[:, None])
        if SELECTED:
            seen = seen & _chosen(bits + (b * T + t) * words + s0 // 32, t < T, BS)
        p = tl.where(seen, tl.exp2(score - log[:, None]), 0.0)
        ds = (p * (dp - mean[:, None]) * scale).to(k_tile.dtype)
        acc = tl.dot(ds, k_tile, acc, input_precision="ieee")
    tl.store(
        dq + place[:, None] * H + tl.arange(0, H)[None, :], acc.to(dq.dtype.element_ty), mask=(t < T)[:, None]
    )


@triton.jit
def _queries_that_see(start, stop, s0, T, BS: tl.constexpr):
    """First and last + 1 query that sees any of the keys from s0 on."""
    lo = tl.full([], 2147483647, tl.int32)
    hi = tl.zeros([], tl.int32)
    for t0 in range(0, T, 1024):
        t = t0 + tl.arange(0, 1024)
        first, last = _range(start, stop, t, T)
        sees = (first < s0 + BS) & (last > s0) & (first < last)
        lo = tl.minimum(lo, tl.min(tl.where(sees, t, 2147483647)))
        hi = tl.maximum(hi, tl.max(tl.where(sees, t + 1, 0)))
    return lo, hi


@triton.jit
def _own_keys(start, stop, T, N, BS: tl.constexpr):
    """Of a program that owns BS keys of a head: batch entry, head, first key, the entry's ranges, and the
    first and last + 1 query that sees any of them.
    """
    b = (tl.program_id(1) // N).to(tl.int64)
    s0 = tl.program_id(0) * BS
    start += b * T
    stop += b * T
    lo, hi = _queries_that_see(start, stop, s0, T, BS)
    return b, tl.program_id(1) % N, s0, start, stop, lo, hi


@triton.jit
def _weights_by_key(
    k_tile, q_tile, lse, start, stop, bits, words, scale, t, s, row, T, N,
    BS: tl.constexpr, SELECTED: tl.constexpr,
):  # fmt: skip
    """Attention weights (keys, queries): transposed, so that they need not move before the next product."""
    first, last = _range(start, stop, t, T)
    log = tl.load(lse + row * N, mask=t < T, other=0.0) * LOG2E
    log = tl.where(log == float("-inf"), 0.0, log)
    score = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee") * (scale * LOG2E)
    seen = (s[:, None] >= first[None, :]) & (s[:, None] < last[None, :])
    if SELECTED:
        seen = seen & _chosen_by_key(bits + row * words, t < T, BS)
    return tl.where(seen, tl.exp2(score - log[None, :]), 0.0)


@triton.jit
def _key_gradient_kernel(
    q, k, v, grad, lse, delta, dk, start, stop, bits, words, scale, T, S, N,
    H: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, SELECTED: tl.constexpr,
):  # fmt: skip
    """Gradient of BS keys of a head."""
    b, n, s0, start, stop, lo, hi = _own_keys(start, stop, T, N, BS)
    s = s0 + tl.arange(0, BS)
    k_tile = _rows(k + (b * S * N + n) * H, s, s < S, N * H, H)
    v_tile = _rows(v + (b * S * N + n) * V, s, s < S, N * V, V)
    acc = tl.zeros([BS, H], tl.float32)
    for t0 in range(lo // BT * BT, hi, BT):
        t = t0 + tl.arange(0, BT)
        row = b * T + t
        q_tile = _rows(q + (b * T * N + n) * H, t, t < T, N * H, H)
        g_tile = _rows(grad + (b * T * N + n) * V, t, t < T, N * V, V)
        p = _weights_by_key(
            k_tile, q_tile, lse + n, start, stop, bits + s0 // 32, words, scale, t, s, row, T, N, BS, SELECTED
        )
        dp = tl.dot(v_tile, tl.trans(g_tile), input_precision="ieee")
        mean = tl.load(delta + row * N + n, mask=t < T, other=0.0)
        ds = (p * (dp - mean[None, :]) * scale).to(q_tile.dtype)
        acc = tl.dot(ds, q_tile, acc, input_precision="ieee")
    place = dk + ((b * S + s) * N + n)[:, None] * H + tl.arange(0, H)[None, :]
    tl.store(place, acc.to(dk.dtype.element_ty), mask=(s < S)[:, None])


@triton.jit
def _value_gradient_kernel(
    q, k, grad, lse, dv, start, stop, bits, words, scale, T, S, N,
    H: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, SELECTED: tl.constexpr,
):  # fmt: skip
    """Gradient of BS values of a head. Beside that of the keys it would not fit into the registers."""
    b, n, s0, start, stop, lo, hi = _own_keys(start, stop, T, N, BS)
    s = s0 + tl.arange(0, BS)
    k_tile = _rows(k + (b * S * N + n) * H, s, s < S, N * H, H)
    acc = tl.zeros([BS, V], tl.float32)
    for t0 in range(lo // BT * BT, hi, BT):
        t = t0 + tl.arange(0, BT)
        q_tile = _rows(q + (b * T * N + n) * H, t, t < T, N * H, H)
        g_tile = _rows(grad + (b * T * N + n) * V, t, t < T, N * V, V)
        p = _weights_by_key(
            k_tile, q_tile, lse + n, start, stop, bits + s0 // 32, words, scale, t, s, b * T + t, T, N, BS,
            SELECTED,
        )  # fmt: skip
        acc = tl.dot(p.to(g_tile.dtype), g_tile, acc, input_precision="ieee")
    place = dv + ((b * S + s) * N + n)[:, None] * V + tl.arange(0, V)[None, :]
    tl.store(place, acc.to(dv.dtype.element_ty), mask=(s < S)[:, None])
