"""Gradients of masked attention's keys and values for Hopper, in Gluon (``model/kernels/hopper.py``).

A program owns 64 keys of a head and walks over the queries that see them. Warpgroups have roles, as in sparse
MLA's kernels: one multiplies the keys with a tile of queries and turns scores into weights and their
gradients, one adds up the values' gradient, one the keys'; the last two also load the tiles that they
multiply with, two ahead. Sums have a fixed order.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from model.kernels.hopper import available

# Head dims, keys and queries of a tile.
WIDTH, TILE, LOG2E = gl.constexpr(256), gl.constexpr(64), gl.constexpr(1.4426950408889634)
# Registers of a thread of a sum's warpgroup and of the scores'.
REGISTERS = (168, 168)


def fits(q: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the kernel takes these queries and values."""
    return available(q) and q.shape[-1] == v.shape[-1] == WIDTH.value


def launch_key_value_gradients(q, k, v, grad, lse, delta, dk, dv, start, stop, bits, scale: float) -> None:
    """Fills dk and dv (B, S, N, 256) from the forward pass's inputs, ``lse`` and the products ``delta`` of
    gradient and output (both (B, T, N)), and the selection's bits, None for all keys of the ranges.
    """
    (B, T, N, _), S = q.shape, k.shape[1]
    seen, bounds = seen_keys(start, stop, bits, S)
    words, blocks = seen.shape[-1], bounds.shape[1]
    _gradients[(blocks, B * N)](
        q,
        k,
        v,
        grad,
        lse,
        delta,
        dk,
        dv,
        seen,
        bounds,
        scale,
        T,
        S,
        N,
        words,
        blocks,
        *REGISTERS,
        num_warps=4,
    )


def seen_keys(start_BT, stop_BT, bits_BTW, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 (B, T, W): bit ``s % 32`` of word ``s // 32`` says whether the query sees key s; and int32
    (B, S / 64, 2): for each tile of keys the first and last + 1 query whose range meets it.
    """
    B, T = start_BT.shape
    blocks = triton.cdiv(keys, TILE.value)
    seen = torch.empty(B, T, 2 * blocks, dtype=torch.int32, device=start_BT.device)
    bounds = torch.empty(B, blocks, 2, dtype=torch.int32, device=start_BT.device)
    selected = bits_BTW is not None
    _seen_kernel[(T, B)](
        start_BT, stop_BT, bits_BTW if selected else seen, seen, T, bits_BTW.shape[-1] if selected else 0,
        2 * blocks, SELECTED=selected, BLOCK=triton.next_power_of_2(2 * blocks), num_warps=1,
    )  # fmt: skip
    _bounds_kernel[(blocks, B)](start_BT, stop_BT, bounds, T, blocks, BS=TILE.value, num_warps=4)
    return seen, bounds


@triton.jit
def _seen_kernel(start, stop, bits, seen, T, held, words, SELECTED: tl.constexpr, BLOCK: tl.constexpr):
    """Bits of the keys that a query sees: of its range and, if SELECTED, also in ``bits``."""
    row = (tl.program_id(1) * T + tl.program_id(0)).to(tl.int64)
    word = tl.arange(0, BLOCK)
    first = tl.load(start + row) - word * 32
    last = tl.load(stop + row) - word * 32
    low = tl.minimum(tl.maximum(first, 0), 32).to(tl.int64)
    high = tl.minimum(tl.maximum(last, 0), 32).to(tl.int64)
    one = tl.full([BLOCK], 1, tl.int64)
    value = tl.where(high > low, (one << high) - (one << low), 0).to(tl.int32)
    if SELECTED:
        value = value & tl.load(bits + row * held + word, mask=word < held, other=0)
    tl.store(seen + row * words + word, value, mask=word < words)


@triton.jit
def _bounds_kernel(start, stop, bounds, T, blocks, BS: tl.constexpr):
    """First and last + 1 query that sees any of a block's keys."""
    s0 = tl.program_id(0) * BS
    start += tl.program_id(1).to(tl.int64) * T
    stop += tl.program_id(1).to(tl.int64) * T
    lo = tl.full([], 2147483647, tl.int32)
    hi = tl.zeros([], tl.int32)
    for t0 in range(0, T, 4096):
        t = t0 + tl.arange(0, 4096)
        first = tl.load(start + t, mask=t < T, other=2147483647)
        last = tl.load(stop + t, mask=t < T, other=0)
        sees = (first < s0 + BS) & (last > s0) & (first < last)
        lo = tl.minimum(lo, tl.min(tl.where(sees, t, 2147483647)))
        hi = tl.maximum(hi, tl.max(tl.where(sees, t + 1, 0)))
    place = bounds + (tl.program_id(1) * blocks + tl.program_id(0)) * 2
    tl.store(place, tl.minimum(lo, hi))
    tl.store(place + 1, hi)


@gluon.jit
def _load(source, row0, rows, stride, target):
    """Starts copying TILE rows; behind the last one it is copied again."""
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    row = gl.minimum(row0 + gl.arange(0, TILE, layout=gl.SliceLayout(1, wide)), rows - 1)
    c = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, wide))
    place = gl.expand_dims(row.to(gl.int64) * stride, 1) + gl.expand_dims(c, 0)
    async_copy.async_copy_global_to_shared(target, source + place)


@gluon.jit
def _gradients(
    q, k, v, grad, lse, delta, dk, dv, seen, bounds, scale, T, S, N, words, blocks,
    SUMS_REGISTERS: gl.constexpr, SCORES_REGISTERS: gl.constexpr,
):  # fmt: skip
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q.dtype.element_ty
    block = gl.program_id(0)
    b = (gl.program_id(1) // N).to(gl.int64)
    n = gl.program_id(1) % N
    stride = N * WIDTH
    lo = gl.load(bounds + (b * blocks + block) * 2) // TILE * TILE
    hi = gl.load(bounds + (b * blocks + block) * 2 + 1)
    s0 = block * TILE

    k_s = gl.allocate_shared_memory(dtype, [TILE, WIDTH], shared)
    v_s = gl.allocate_shared_memory(dtype, [TILE, WIDTH], shared)
    q_s = gl.allocate_shared_memory(dtype, [2, TILE, WIDTH], shared)
    g_s = gl.allocate_shared_memory(dtype, [2, TILE, WIDTH], shared)
    p_s = gl.allocate_shared_memory(dtype, [TILE, TILE], shared)
    ds_s = gl.allocate_shared_memory(dtype, [TILE, TILE], shared)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    ready, free, loaded = others.index(0), others.index(1), others.index(2)
    for i in gl.static_range(4):
        mbarrier.init(full.index(i), count=128)
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=2)
    mbarrier.init(loaded, count=1)

    keys = (b * S * N + n) * WIDTH
    queries = (b * T * N + n) * WIDTH
    _load(k + keys, s0, S, stride, k_s)
    _load(v + keys, s0, S, stride, v_s)
    async_copy.commit_group()
    row = b * T
    gl.warp_specialize(
        [
            (
                _values,
                (grad + queries, lo, hi, T, stride, dv + keys, s0, S, g_s, p_s, full, ready, free, loaded),
            ),
            (_keys, (q + queries, lo, hi, T, stride, dk + keys, s0, S, q_s, ds_s, full, ready, free)),
            (
                _scores,
                (lse + row * N + n, delta + row * N + n, seen + row * words + 2 * block, scale, lo, hi, T, N,
                 words, k_s, v_s, q_s, g_s, p_s, ds_s, full, ready, free, loaded),
            ),
        ],
        [4, 4],
        [SUMS_REGISTERS, SCORES_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _scores(
    lse, delta, seen, scale, lo, hi, T, N, words, k_s, v_s, q_s, g_s, p_s, ds_s, full, ready, free, loaded
):
    """Weights and score gradients, (keys, queries)."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    key = gl.expand_dims(gl.arange(0, TILE, layout=gl.SliceLayout(1, layout)), 1)
    zero = gl.full([TILE, TILE], 0.0, gl.float32, layout=layout)
    tile = 0
    phase = 0
    turn = 1
    mbarrier.wait(loaded, 0)
    for t0 in range(lo, hi, TILE):
        t = t0 + lane
        there = t < T
        row = gl.minimum(t, T - 1)
        log = gl.load(lse + row * N)
        mean = gl.load(delta + row * N)
        place = seen + row.to(gl.int64) * words
        low = gl.load(place, mask=there, other=0)
        high = gl.load(place + 1, mask=there, other=0)
        mbarrier.wait(full.index(2 * tile), phase)
        fence_async_shared()
        score = warpgroup_mma(k_s, q_s.index(tile).permute((1, 0)), zero, use_acc=False, is_async=True)
        mbarrier.wait(full.index(2 * tile + 1), phase)
        fence_async_shared()
        dp = warpgroup_mma(v_s, g_s.index(tile).permute((1, 0)), zero, use_acc=False, is_async=True)
        log = gl.where(log == float("-inf"), 0.0, log * LOG2E)
        score, dp = warpgroup_mma_wait(0, deps=[score, dp])
        word = gl.where(key >= 32, gl.expand_dims(high, 0), gl.expand_dims(low, 0))
        chosen = ((word >> (key % 32)) & 1) != 0
        p = gl.exp2(score * (scale * LOG2E) - gl.expand_dims(log, 0))
        p = gl.where(chosen, p, 0.0)
        ds = p * (dp - gl.expand_dims(mean, 0)) * scale
        mbarrier.wait(free, turn)
        turn ^= 1
        p_s.store(p.to(p_s.dtype))
        ds_s.store(ds.to(ds_s.dtype))
        fence_async_shared()
        gl.thread_barrier()
        mbarrier.arrive(ready, count=1)
        phase ^= tile
        tile ^= 1


@gluon.jit
def _values(grad, lo, hi, T, stride, dv, s0, S, g_s, p_s, full, ready, free, loaded):
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(loaded, count=1)
    _sum(1, grad, lo, hi, T, stride, dv, s0, S, g_s, p_s, full, ready, free)


@gluon.jit
def _keys(q, lo, hi, T, stride, dk, s0, S, q_s, ds_s, full, ready, free):
    _sum(0, q, lo, hi, T, stride, dk, s0, S, q_s, ds_s, full, ready, free)


@gluon.jit
def _sum(half: gl.constexpr, source, lo, hi, T, stride, out, s0, S, tiles, weight, full, ready, free):
    """Weights (keys, queries) times rows of queries or of their gradients, and the loads of those rows.

    No fence stands before the product: the scores' warpgroup has seen the rows, and fenced before it
    signalled.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    acc = gl.full([TILE, WIDTH], 0.0, gl.float32, layout=layout)
    for i in gl.static_range(2):
        if lo + i * TILE < hi:
            _load(source, lo + i * TILE, T, stride, tiles.index(i))
            async_copy.mbarrier_arrive(full.index(2 * i + half), increment_count=False)
    tile = 0
    turn = 0
    for t0 in range(lo, hi, TILE):
        mbarrier.wait(ready, turn)
        turn ^= 1
        acc = warpgroup_mma(weight, tiles.index(tile), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free, count=1)
        if t0 + 2 * TILE < hi:
            _load(source, t0 + 2 * TILE, T, stride, tiles.index(tile))
            async_copy.mbarrier_arrive(full.index(2 * tile + half), increment_count=False)
        tile ^= 1
    s = s0 + gl.arange(0, TILE, layout=gl.SliceLayout(1, layout))
    c = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    place = gl.expand_dims(s.to(gl.int64) * stride, 1) + gl.expand_dims(c, 0)
    gl.store(out + place, acc.to(out.dtype.element_ty), mask=gl.expand_dims(s < S, 1))
