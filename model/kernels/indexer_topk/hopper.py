"""Scores on Hopper (Gluon), 32 heads of 128: the next tile is multiplied while a tile is summed.

Two accumulators: a warpgroup adds up the heads of one tile while the matrix unit works on the next. Keys come
by the bulk copy engine, two tiles at a time. The order of every sum is that of the plain kernel.
"""

from typing import TYPE_CHECKING

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from model.kernels.hopper import available

if TYPE_CHECKING:
    from model.kernels.indexer_topk.triton import Chunk, Inputs, Plan

HEADS = gl.constexpr(32)
DIM = gl.constexpr(128)
KEYS = gl.constexpr(64)
# Tiles that one program should see, with classes and without.
TILES = 64, 32
# Where a thread's sums lie: two keys, 8 apart, of one query; by the number of queries.
LANES = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
TOTAL4 = gl.constexpr(gl.DistributedLinearLayout([[8, 0]], LANES, [[16, 0], [32, 0]], [], [64, 4]))
TOTAL8 = gl.constexpr(gl.DistributedLinearLayout([[8, 0]], LANES, [[16, 0], [32, 0], [0, 4]], [], [64, 8]))


def fits(q: torch.Tensor, k: torch.Tensor, tile: int) -> bool:
    """Whether the kernel takes queries and keys (B, S, 128) like these in tiles of so many keys."""
    same = q.dtype == k.dtype and q.dtype in (torch.bfloat16, torch.float8_e4m3fn)
    shape = q.shape[2:] == (HEADS.value, DIM.value) and k.shape[1] > 0 and tile == KEYS.value
    return same and shape and available(q.view(torch.bfloat16))


def launch(
    inputs: "Inputs", plan: "Plan", chunk: "Chunk", score: torch.Tensor, group_max: torch.Tensor
) -> None:
    """As ``scores.score_chunk``."""
    q, k, _, scale, weight, start, stop = inputs
    S = k.shape[1]
    residues = max(1, min(plan.groups // KEYS.value, TILES[plan.direct] * plan.groups // S))
    # A warpgroup has four queries. Two share the tiles of keys in long rows; short ones are quicker with one.
    queries = 4 if plan.direct else 8
    shared = gl.NVMMASharedLayout(128, 8 * k.element_size(), 2)
    keys = TensorDescriptor.from_tensor(k.view(-1, DIM.value), [KEYS.value, DIM.value], shared)
    blocks = triton.cdiv(chunk.queries, queries) * triton.cdiv(plan.groups // KEYS.value, residues)
    _hopper_scores[(blocks, chunk.batches)](
        q, keys, weight if scale is None else scale, weight, start, stop, score, group_max,
        chunk.b, chunk.t, chunk.queries, q.shape[1], S, plan.width, plan.trivial,
        GROUPS=plan.groups, RESIDUES=residues, MAXIMA=not plan.direct, SCALED=scale is not None,
        QUERIES=queries, num_warps=queries,
    )  # fmt: skip


@gluon.jit
def _next(place, walk, GROUPS: gl.constexpr, RESIDUES: gl.constexpr):
    """Place of the tile after ``place`` = (first key, its number in the class, number of the class)."""
    s0, j, r = place
    base, full, more, fewer = walk
    if RESIDUES == 1:
        return s0 + GROUPS, j, r
    else:
        ended = j + 1 == gl.where(r < full, more, fewer)
        r_next = gl.where(ended, r + 1, r)
        return gl.where(ended, base + r_next * KEYS, s0 + GROUPS), gl.where(ended, 0, j + 1), r_next


@gluon.jit
def _copy(pair, pairs, keys, row_a, row_b, k_tiles, full_bar, SLOTS: gl.constexpr):
    """Starts copying two tiles of keys."""
    slot = pair % SLOTS
    bar = full_bar.index(slot)
    ok = pair < pairs
    mbarrier.expect(bar, 2 * KEYS * DIM * keys.dtype.primitive_bitwidth // 8, pred=ok)
    tma.async_copy_global_to_shared(keys, [row_a, 0], bar, k_tiles.index(2 * slot), pred=ok)
    tma.async_copy_global_to_shared(keys, [row_b, 0], bar, k_tiles.index(2 * slot + 1), pred=ok)


@gluon.jit
def _arrived(pair, pairs, full_bar, SLOTS: gl.constexpr):
    """Waits for a pair of tiles. Also ends a block of instructions, so that the assembler does not move the
    sums before it behind the end of a product.
    """
    mbarrier.wait(full_bar.index(pair % SLOTS), (pair // SLOTS) & 1, pred=pair < pairs)


@gluon.jit
def _total(dot, half_w, QUERIES: gl.constexpr):
    TOTAL: gl.constexpr = TOTAL8 if QUERIES == 8 else TOTAL4
    part = (dot + gl.abs(dot)) * gl.expand_dims(half_w, 0)
    part = gl.permute(gl.reshape(part, [KEYS, QUERIES // 4, HEADS // 2, 4, 2]), (0, 1, 3, 2, 4))
    return gl.convert_layout(gl.sum(gl.reshape(part, [KEYS, QUERIES, HEADS]), 2), TOTAL, assert_trivial=True)


@gluon.jit
def _scale(k_scale, row, s, S, SCALED: gl.constexpr):
    if SCALED:
        return gl.load(k_scale + row + s, mask=s < S, other=0.0)
    else:
        return s


@gluon.jit
def _finish(
    dot, half_w, scale, present, place, walk, best, first, last, score_ptr, max_ptr, row_ok, key,
    GROUPS: gl.constexpr, RESIDUES: gl.constexpr, MAXIMA: gl.constexpr, SCALED: gl.constexpr,
    QUERIES: gl.constexpr,
):  # fmt: skip
    """Sums, stores and keeps the maxima of one tile, if it is ``present``."""
    s0, j, r = place
    total = _total(dot, half_w, QUERIES)
    if SCALED:
        total = total * gl.expand_dims(scale, 1)
    total = gl.where(total == 0.0, 0.0, total)  # -0.0 ties with 0.0
    s = gl.expand_dims(s0 + key, 1)
    seen = (s >= gl.expand_dims(first, 0)) & (s < gl.expand_dims(last, 0)) & present
    if MAXIMA:
        if RESIDUES > 1:
            best = gl.where(j == 0, float("-inf"), best)
        best = gl.maximum(best, gl.where(seen, total, float("-inf")))
    gl.store(score_ptr + s0, total, mask=seen)
    if MAXIMA and RESIDUES > 1:
        base, full, more, fewer = walk
        if (j + 1 == gl.where(r < full, more, fewer)) & present:
            gl.store(max_ptr + (s0 & (GROUPS - 1)), best, mask=gl.expand_dims(row_ok, 0))
    return best


@gluon.jit
def _hopper_scores(
    q, keys, k_scale, weight, start, stop, score, group_max, b0, t0, Tc, T, S, width, trivial,
    GROUPS: gl.constexpr, RESIDUES: gl.constexpr, MAXIMA: gl.constexpr, SCALED: gl.constexpr,
    QUERIES: gl.constexpr,
):  # fmt: skip
    """As the plain ``_score_kernel`` for 32 heads of 128 dims."""
    dtype: gl.constexpr = q.dtype.element_ty
    BITS: gl.constexpr = dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, QUERIES // 4], [16, 128, 256 // BITS])
    COLUMNS: gl.constexpr = QUERIES * HEADS
    TOTAL: gl.constexpr = TOTAL8 if QUERIES == 8 else TOTAL4
    columns: gl.constexpr = gl.SliceLayout(0, layout)
    key_axis: gl.constexpr = gl.SliceLayout(1, TOTAL)
    query_axis: gl.constexpr = gl.SliceLayout(0, TOTAL)
    wide: gl.constexpr = gl.BlockedLayout([1, 128 // BITS], [BITS // 2, 64 // BITS], [QUERIES, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout(128, BITS, 2)
    SLOTS: gl.constexpr = 32 // BITS
    query_blocks = gl.cdiv(Tc, QUERIES)
    block = gl.program_id(0) % query_blocks
    residue0 = gl.program_id(0) // query_blocks * RESIDUES
    b = b0 + gl.program_id(1)
    local_t = block * QUERIES + gl.arange(0, QUERIES, layout=query_axis)
    row_ok = local_t < Tc
    first = gl.load(start + b * T + t0 + local_t, mask=row_ok, other=2147483647)
    last = gl.load(stop + b * T + t0 + local_t, mask=row_ok, other=0)
    last = gl.where(last - first <= trivial, 0, last)
    row = (gl.program_id(1) * Tc + local_t).to(gl.int64)
    lo = gl.min(first, 0)
    hi = gl.max(last, 0)
    j0 = lo // GROUPS
    more = gl.maximum(gl.cdiv(hi, GROUPS) - j0, 0)
    fewer = gl.maximum(more - 1, 0)
    here = gl.minimum(RESIDUES, GROUPS // KEYS - residue0)
    full = gl.cdiv(hi - (j0 + fewer) * GROUPS, KEYS) - residue0
    full = gl.where(more > 0, gl.minimum(gl.maximum(full, 0), here), 0)
    steps = full * more + (here - full) * fewer

    if steps == 0:  # classes without a visible key are not read
        return

    k_tiles = gl.allocate_shared_memory(dtype, [2 * SLOTS, KEYS, DIM], shared)
    q_tile = gl.allocate_shared_memory(dtype, [COLUMNS, DIM], shared)
    full_bar = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full_bar.index(i), count=1)
    pairs = gl.cdiv(steps, 2)
    base = j0 * GROUPS + residue0 * KEYS
    walk = (base, full, more, fewer)
    place_a = (base, 0, 0)
    ahead = place_a
    for i in gl.static_range(SLOTS):
        behind = _next(ahead, walk, GROUPS, RESIDUES)
        _copy(i, pairs, keys, b * S + ahead[0], b * S + behind[0], k_tiles, full_bar, SLOTS)
        ahead = _next(behind, walk, GROUPS, RESIDUES)
    # Columns run (head high, query, head low of 2): a thread then owns all heads of its query.
    c = gl.arange(0, COLUMNS, layout=gl.SliceLayout(1, wide))
    t_c = block * QUERIES + c // 128 * 4 + c // 2 % 4
    row_c = (b * T + t0 + t_c).to(gl.int64) * HEADS + c // 8 % 16 * 2 + c % 2
    dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, wide))
    q_ptr = q + gl.expand_dims(row_c, 1) * DIM + gl.expand_dims(dims, 0)
    q_tile.store(gl.load(q_ptr, mask=gl.expand_dims(t_c < Tc, 1), other=0.0))
    c = gl.arange(0, COLUMNS, layout=columns)
    t_c = block * QUERIES + c // 128 * 4 + c // 2 % 4
    row_c = (b * T + t0 + t_c).to(gl.int64) * HEADS + c // 8 % 16 * 2 + c % 2
    # relu(x) = (x + |x|) / 2: an add with a free absolute value instead of a half-rate maximum.
    half_w = gl.load(weight + row_c, mask=t_c < Tc, other=0.0) * 0.5
    fence_async_shared()
    gl.thread_barrier()

    key = gl.arange(0, KEYS, layout=key_axis)
    score_ptr = score + gl.expand_dims(row, 0) * width + gl.expand_dims(key, 1)
    max_ptr = group_max + gl.expand_dims(row, 0) * GROUPS + gl.expand_dims(key, 1)
    best = gl.full([KEYS, QUERIES], float("-inf"), gl.float32, layout=TOTAL)
    zero = gl.full([KEYS, COLUMNS], 0.0, gl.float32, layout=layout)
    q_t = q_tile.permute((1, 0))
    scale_a = _scale(k_scale, b * S, place_a[0] + key, S, SCALED)
    _arrived(0, pairs, full_bar, SLOTS)
    dot_a = warpgroup_mma(k_tiles.index(0), q_t, zero, use_acc=False, is_async=True)
    dot_a = warpgroup_mma_wait(0, deps=[dot_a])
    for pair in range(pairs):
        slot = pair % SLOTS
        dot_b = warpgroup_mma(k_tiles.index(2 * slot + 1), q_t, zero, use_acc=False, is_async=True)
        place_b = _next(place_a, walk, GROUPS, RESIDUES)
        scale_b = _scale(k_scale, b * S, place_b[0] + key, S, SCALED)
        best = _finish(
            dot_a, half_w, scale_a, 2 * pair < steps, place_a, walk, best, first, last, score_ptr, max_ptr,
            row_ok, key, GROUPS, RESIDUES, MAXIMA, SCALED, QUERIES,
        )  # fmt: skip
        _arrived(pair + 1, pairs, full_bar, SLOTS)
        dot_b = warpgroup_mma_wait(0, deps=[dot_b])
        # Behind the last pair this is a product of old keys that nobody reads.
        dot_a = warpgroup_mma(
            k_tiles.index(2 * ((pair + 1) % SLOTS)), q_t, zero, use_acc=False, is_async=True
        )
        place_a = _next(place_b, walk, GROUPS, RESIDUES)
        scale_a = _scale(k_scale, b * S, place_a[0] + key, S, SCALED)
        # Every warp is done with this pair.
        gl.thread_barrier()
        behind = _next(ahead, walk, GROUPS, RESIDUES)
        _copy(pair + SLOTS, pairs, keys, b * S + ahead[0], b * S + behind[0], k_tiles, full_bar, SLOTS)
        ahead = _next(behind, walk, GROUPS, RESIDUES)
        best = _finish(
            dot_b, half_w, scale_b, 2 * pair + 1 < steps, place_b, walk, best, first, last, score_ptr,
            max_ptr, row_ok, key, GROUPS, RESIDUES, MAXIMA, SCALED, QUERIES,
        )  # fmt: skip
        _arrived(pair + 1, pairs, full_bar, SLOTS)
        dot_a = warpgroup_mma_wait(0, deps=[dot_a])
    if MAXIMA and RESIDUES == 1:
        gl.store(max_ptr + residue0 * KEYS, best, mask=gl.expand_dims(row_ok, 0))
