"""Sparse MLA's forward pass for Hopper; see ``hopper.py``.

Shared memory: the query (64 heads x 576) and two tiles of 64 gathered rows. Of two tiles each warpgroup that
multiplies has the scores of one and half of the result's columns of both. Its weights take the place of the
tile's rotated parts, which values do not have. While one turns scores into weights the other one multiplies.

The third warpgroup copies: a copy of scattered rows keeps who issues it busy for about as long as it takes.
A program takes one item (a query, 64 of its heads, a split of its keys) after the other; rows of the next
are on their way before one ends.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from model.kernels.sparse_mla.hopper import (
    FILL,
    HEADS,
    LATENT,
    QUARTER,
    ROTATED,
    WARPS,
    gather,
    gather_rotated,
    load_half,
    load_rotated,
    selected_rows,
    signal,
    weight_tiles,
)
from model.kernels.sparse_mla.rows import LN2, LOG2E

TILE = gl.constexpr(64)
# Of a thread of the second warpgroup that multiplies and of the one that copies; the first gets what they
# leave of 504.
REGISTERS = (208, 88)


def launch(q, kv, index, out, lse, scale: float, splits: int, row0: int, rows: int, weights, top) -> None:
    """Fills out (splits, rows, N, C) and lse (splits, rows, N) for ``rows`` queries of q (B, T, N, X), from
    ``row0`` on counted over the batch; kv is (B, S, X), index (B, T, K). Where they are not None also
    weights (rows, N, K), exp2(score - top) in 16 bits, and top (rows, tiles, N), the largest score in base 2
    of its split up to that tile.
    """
    N = q.shape[2]
    items = rows * N // HEADS.value * splits
    _forward[(min(items, FILL),)](
        q, kv, index, out, lse, None if weights is None else weight_tiles(weights), top, scale * LOG2E.value,
        q.shape[1], kv.shape[1], N // HEADS.value, index.shape[-1], row0, rows, splits, *REGISTERS,
        EXPORT=weights is not None, num_warps=WARPS,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["T", "S", "row0", "rows", "splits"])
def _forward(
    q, kv, index, out, lse, weights, top, scale_log2, T, S, blocks, K, row0, rows, splits,
    SECOND_REGISTERS: gl.constexpr, COPY_REGISTERS: gl.constexpr, EXPORT: gl.constexpr,
):  # fmt: skip
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q.dtype.element_ty

    q_c = gl.allocate_shared_memory(dtype, [4, HEADS, QUARTER], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    k_c = gl.allocate_shared_memory(dtype, [8, TILE, QUARTER], shared)  # tile 0 in quarters, then tile 1
    k_r = gl.allocate_shared_memory(dtype, [2, TILE, ROTATED], shared)
    # Of each tile: maxima so far, what the sums so far shrink by; of each warpgroup: sums of its weights.
    most = gl.allocate_shared_memory(gl.float32, [2, HEADS], flat)
    factor = gl.allocate_shared_memory(gl.float32, [2, HEADS], flat)
    sums = gl.allocate_shared_memory(gl.float32, [2, HEADS], flat)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], barrier)  # of each tile: half 0, half 1
    free = gl.allocate_shared_memory(gl.int64, [4, 1], barrier)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    done = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    query = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)  # arrived, read
    for i in gl.static_range(4):
        mbarrier.init(full.index(i), count=128)
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(done.index(i), count=1)
    mbarrier.init(query.index(0), count=128)
    mbarrier.init(query.index(1), count=2)

    pairs = gl.cdiv(gl.cdiv(K, 2 * TILE), splits)
    gl.warp_specialize(
        [
            (
                _multiply,
                (0, index, scale_log2, K, row0, rows, blocks, splits, pairs, out, lse, weights, top, q_c, q_r,
                 k_c, k_r, most, factor, sums, full, free, ready, done, query, EXPORT),
            ),
            (
                _multiply,
                (1, index, scale_log2, K, row0, rows, blocks, splits, pairs, out, lse, weights, top, q_c, q_r,
                 k_c, k_r, most, factor, sums, full, free, ready, done, query, EXPORT),
            ),
            (
                _copy,
                (q, kv, index, T, S, K, row0, rows, blocks, splits, pairs, q_c, q_r, k_c, k_r, full, free,
                 query),
            ),
        ],
        [4, 4],
        [SECOND_REGISTERS, COPY_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _place(item, row0, rows, blocks, K, pairs):
    """Row, first and last + 1 selected key of an item, none where a split lies behind all keys; items count
    blocks of heads, then rows, then splits.
    """
    wide = item // blocks
    split = wide // rows
    first = split * pairs * 2 * TILE
    return row0 + wide - split * rows, first, gl.minimum(first + pairs * 2 * TILE, K)


@gluon.jit
def _copy(q, kv, index, T, S, K, row0, rows, blocks, splits, pairs, q_c, q_r, k_c, k_r, full, free, query):
    """Copies queries and tiles. Of a tile that half comes first whose columns are free first: those of the
    warpgroup that has the tile's scores. Which rows are selected is read a tile ahead.
    """
    X: gl.constexpr = LATENT + ROTATED
    items = rows * blocks * splits
    turn = 1  # the first tiles and the first query find their places empty
    query_turn = 1
    row, first, last = _place(gl.program_id(0), row0, rows, blocks, K, pairs)
    s, s_narrow = selected_rows(index + row.to(gl.int64) * K, first, last, TILE)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        base = row // T * S
        index_row = index + row.to(gl.int64) * K
        source = q + (row.to(gl.int64) * blocks + item % blocks) * HEADS * X
        for pair in range(pairs):
            place = first + (2 * pair + 1) * TILE
            s_odd, odd_narrow = selected_rows(index_row, place, last, TILE)
            _copy_tile(0, kv, base, s, s_narrow, k_c, k_r, full, free, turn)
            if pair == 0:
                mbarrier.wait(query.index(1), query_turn)
                load_half(source, X, q_c.index(0), q_c.index(1))
                load_half(source + 2 * QUARTER, X, q_c.index(2), q_c.index(3))
                load_rotated(source, q_r)
                signal(query.index(0))
            place += TILE
            if pair == pairs - 1:
                following = gl.minimum(item + gl.num_programs(0), items - 1)
                row, first, last = _place(following, row0, rows, blocks, K, pairs)
                index_row = index + row.to(gl.int64) * K
                place = first
            s, s_narrow = selected_rows(index_row, place, last, TILE)
            _copy_tile(1, kv, base, s_odd, odd_narrow, k_c, k_r, full, free, turn)
            turn ^= 1
        query_turn ^= 1


@gluon.jit
def _copy_tile(tile: gl.constexpr, kv, base, s, s_narrow, k_c, k_r, full, free, turn):
    _copy_half(tile, tile, kv, base, s, s_narrow, k_c, k_r, full, free, turn)
    _copy_half(tile, 1 - tile, kv, base, s, s_narrow, k_c, k_r, full, free, turn)


@gluon.jit
def _copy_half(tile: gl.constexpr, half: gl.constexpr, kv, base, s, s_narrow, k_c, k_r, full, free, turn):
    """Half of a tile's columns once they are free; with the later half the rotated parts."""
    mbarrier.wait(free.index(2 * tile + half), turn)
    if half != tile:
        gather_rotated(kv, base, s_narrow, k_r.index(tile))
    gather(kv, base, s, 2 * half, k_c.index(4 * tile + 2 * half))
    gather(kv, base, s, 2 * half + 1, k_c.index(4 * tile + 2 * half + 1))
    signal(full.index(2 * tile + half))


@gluon.jit
def _multiply(
    side: gl.constexpr, index, scale_log2, K, row0, rows, blocks, splits, pairs, out, lse, weights, top, q_c,
    q_r, k_c, k_r, most, factor, sums, full, free, ready, done, query, EXPORT: gl.constexpr,
):  # fmt: skip
    """Scores of tile ``side`` of each pair, and that half of the result's columns."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    head_axis: gl.constexpr = gl.SliceLayout(1, layout)
    wide_axis: gl.constexpr = gl.SliceLayout(1, wide)
    other: gl.constexpr = 1 - side
    # A result leaves the cache to the keys; what splits give is read again at once.
    stream: gl.constexpr = ".cs" if out.dtype.element_ty == gl.bfloat16 else ""
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=layout)
    items = rows * blocks * splits
    phase = 0
    turn = 0
    # Always 0 as the grid has one dimension, which the compiler does not know: else it keeps an address for
    # each operand in a register.
    nil = gl.program_id(1)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        row, first, last = _place(item, row0, rows, blocks, K, pairs)
        index_row = index + row.to(gl.int64) * K
        m = gl.full([HEADS], float("-inf"), gl.float32, layout=head_axis)
        norm = gl.full([HEADS], 0.0, gl.float32, layout=head_axis)
        acc0 = gl.full([HEADS, QUARTER], 0.0, gl.float32, layout=wide)
        acc1 = gl.full([HEADS, QUARTER], 0.0, gl.float32, layout=wide)
        mbarrier.wait(query.index(0), turn)
        for pair in range(pairs):
            k0 = first + (2 * pair + side) * TILE
            s = gl.load(index_row + k0 + lane, mask=k0 + lane < last, other=-1)
            mbarrier.wait(full.index(2 * side + side), phase)
            fence_async_shared()
            score = zero
            for i in gl.static_range(2 * side, 2 * side + 2):
                part = k_c.index(nil + 4 * side + i).permute((1, 0))
                score = warpgroup_mma(q_c.index(nil + i), part, score, use_acc=i != 2 * side, is_async=True)
            mbarrier.wait(full.index(2 * side + other), phase)
            fence_async_shared()
            for i in gl.static_range(2 * other, 2 * other + 2):
                part = k_c.index(nil + 4 * side + i).permute((1, 0))
                score = warpgroup_mma(q_c.index(nil + i), part, score, is_async=True)
            score = warpgroup_mma(q_r, k_r.index(nil + side).permute((1, 0)), score, is_async=True)
            score = warpgroup_mma_wait(0, deps=[score])
            if pair == pairs - 1:
                mbarrier.arrive(query.index(1), count=1)
            score = gl.where(gl.expand_dims(s >= 0, 0), score * scale_log2, float("-inf"))
            if side == 1:
                # The tile before: its product runs while these scores become weights.
                mbarrier.wait(ready.index(0), phase)
                m = most.index(0).load(head_axis)
                norm = norm * factor.index(0).load(head_axis)
                acc0, acc1 = _add(0, 1, nil, acc0, acc1, k_c, k_r, factor.index(0).load(wide_axis))
            m_new = gl.maximum(m, gl.max(score, 1))
            safe = gl.where(m_new == float("-inf"), 0.0, m_new)  # no key so far: exp2(-inf - 0) = 0
            shrink = gl.exp2(m - safe)
            m = m_new
            p = gl.exp2(score - gl.expand_dims(safe, 1))
            k_r.index(side).store(p.to(k_r.dtype))
            most.index(side).store(m)
            factor.index(side).store(shrink)
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(ready.index(side), count=1)
            norm = norm * shrink + gl.sum(p, 1)
            if EXPORT:
                head = item % blocks * HEADS + gl.arange(0, HEADS, layout=head_axis)
                place = (row - row0) * gl.cdiv(K, TILE) + k0 // TILE
                gl.store(top + place.to(gl.int64) * blocks * HEADS + head, m, mask=k0 < K)
                local = ((row - row0) * blocks + item % blocks) * HEADS
                tma.async_copy_shared_to_global(weights, [local, k0], k_r.index(side))
            if side == 1:
                acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
                mbarrier.arrive(free.index(1), count=1)
            own = gl.convert_layout(shrink, wide_axis, assert_trivial=True)
            acc0, acc1 = _add(side, side, nil, acc0, acc1, k_c, k_r, own)
            acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
            if EXPORT:
                tma.store_wait(0)
            mbarrier.arrive(free.index(2 * side + side), count=1)
            if side == 0:
                mbarrier.wait(ready.index(1), phase)
                m = most.index(1).load(head_axis)
                norm = norm * factor.index(1).load(head_axis)
                acc0, acc1 = _add(1, 0, nil, acc0, acc1, k_c, k_r, factor.index(1).load(wide_axis))
                acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
                mbarrier.arrive(free.index(2), count=1)
            phase ^= 1
            nil = nil * phase  # so that what adds it stays inside the loop
        sums.index(side).store(norm)
        gl.thread_barrier()
        mbarrier.arrive(done.index(side), count=1)
        mbarrier.wait(done.index(other), turn)
        turn ^= 1
        if side == 0:
            norm = norm + sums.index(1).load(head_axis)
            empty = norm == 0.0
            log = gl.where(empty, float("-inf"), (m + gl.log2(gl.where(empty, 1.0, norm))) * LN2)
            gl.store(lse + item.to(gl.int64) * HEADS + gl.arange(0, HEADS, layout=head_axis), log)
        norm = sums.index(0).load(wide_axis) + sums.index(1).load(wide_axis)
        inverse = gl.expand_dims(1.0 / gl.where(norm == 0.0, 1.0, norm), 1)
        head = gl.expand_dims(gl.arange(0, HEADS, layout=wide_axis), 1)
        column = 2 * side * QUARTER + gl.expand_dims(gl.arange(0, QUARTER, layout=gl.SliceLayout(0, wide)), 0)
        place = out + item.to(gl.int64) * HEADS * LATENT + head * LATENT + column
        gl.store(place, (acc0 * inverse).to(out.dtype.element_ty), cache_modifier=stream)
        gl.store(place + QUARTER, (acc1 * inverse).to(out.dtype.element_ty), cache_modifier=stream)


@gluon.jit
def _add(tile: gl.constexpr, half: gl.constexpr, nil, acc0, acc1, k_c, k_r, factor):
    """Starts adding a tile's weighted values to what ``factor`` shrinks."""
    acc0 = acc0 * gl.expand_dims(factor, 1)
    acc1 = acc1 * gl.expand_dims(factor, 1)
    place = nil + 4 * tile + 2 * half
    acc0 = warpgroup_mma(k_r.index(nil + tile), k_c.index(place), acc0, is_async=True)
    acc1 = warpgroup_mma(k_r.index(nil + tile), k_c.index(place + 1), acc1, is_async=True)
    return acc0, acc1
