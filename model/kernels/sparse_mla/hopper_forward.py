"""Sparse MLA's forward pass for Hopper; see ``hopper.py`` for how the work is shared.

Shared memory: the query (64 heads x 576), two tiles of 64 gathered rows, one tile of weights. The warpgroup
with the scores keeps half of the query in registers: shared memory is read less. While the values of tile j
are added up, the scores of tile j + 1 are computed and tile j + 2 is on its way. A program takes one item (a
query, 64 of its heads, a split of its keys) after the other, and the first tiles and the query of the next
are on their way before one ends: the half of the query that goes to registers as soon as the item before has
read its own, the rest behind the last product.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from model.kernels.sparse_mla.hopper import (
    FILL,
    HALF,
    HEADS,
    LATENT,
    LN2,
    LOG2E,
    ROTATED,
    WARPS,
    gather,
    load_half,
    load_rotated,
    selected_rows,
)

TILE = gl.constexpr(64)
# Of a thread of the values' warpgroups and of the scores'. ptxas does not follow these two and gives every
# thread 168, but then spills nothing; with pairs that it follows it spills.
REGISTERS = (152, 200)


def launch(q, kv, index, out, lse, scale: float, splits: int, row0: int, rows: int) -> None:
    """Fills out (splits, rows, N, C) and lse (splits, rows, N) for ``rows`` queries of q (B, T, N, X), from
    ``row0`` on counted over the batch; kv is (B, S, X), index (B, T, K).
    """
    N = q.shape[2]
    items = rows * N // HEADS.value * splits
    _forward[(min(items, FILL),)](
        q, kv, index, out, lse, scale * LOG2E.value, q.shape[1], kv.shape[1], N // HEADS.value,
        index.shape[-1], row0, rows, splits, *REGISTERS, num_warps=WARPS,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["T", "S", "row0", "rows", "splits"])
def _forward(
    q, kv, index, out, lse, scale_log2, T, S, blocks, K, row0, rows, splits,
    VALUES_REGISTERS: gl.constexpr, SCORES_REGISTERS: gl.constexpr,
):  # fmt: skip
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q.dtype.element_ty

    q_c = gl.allocate_shared_memory(dtype, [2, HEADS, HALF], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    k_c = gl.allocate_shared_memory(dtype, [4, TILE, HALF], shared)  # tile 0 in halves, tile 1 in halves
    k_r = gl.allocate_shared_memory(dtype, [2, TILE, ROTATED], shared)
    weight = gl.allocate_shared_memory(dtype, [HEADS, TILE], shared)
    factor = gl.allocate_shared_memory(gl.float32, [4, HEADS], flat)  # of a tile, of the next, of two results
    full = gl.allocate_shared_memory(gl.int64, [4, 1], barrier)
    # Two where one side may be a turn ahead of the other.
    scaled = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    done = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    ready, free = others.index(0), others.index(1)
    for i in gl.static_range(4):
        mbarrier.init(full.index(i), count=128)
    for i in gl.static_range(2):
        mbarrier.init(scaled.index(i), count=1)
        mbarrier.init(done.index(i), count=1)
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=2)

    tiles = gl.cdiv(gl.cdiv(K, TILE), splits)
    gl.warp_specialize(
        [
            (
                _values,
                (0, kv, index, T, S, K, row0, rows, blocks, splits, tiles, out, k_c, k_r, weight, factor,
                 full, scaled, ready, free, done),
            ),
            (
                _values,
                (1, kv, index, T, S, K, row0, rows, blocks, splits, tiles, out, k_c, k_r, weight, factor,
                 full, scaled, ready, free, done),
            ),
            (
                _scores,
                (q, index, scale_log2, K, row0, rows, blocks, splits, tiles, lse, q_c, q_r, k_c, k_r, weight,
                 factor, full, scaled, ready, free, done),
            ),
        ],
        [4, 4],
        [VALUES_REGISTERS, SCORES_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _place(item, row0, rows, blocks, K, tiles):
    """Row, first and last + 1 selected key of an item; items count blocks of heads, then rows, then
    splits.
    """
    wide = item // blocks
    split = wide // rows
    first = split * tiles * TILE
    return row0 + wide - split * rows, first, gl.minimum(first + tiles * TILE, K)


@gluon.jit
def _load_query(q, item, row, blocks, q_c, q_r, held: gl.constexpr):
    """Starts copying the half of a query that registers hold, or the rest of it."""
    X: gl.constexpr = LATENT + ROTATED
    source = q + (row.to(gl.int64) * blocks + item % blocks) * HEADS * X
    if held:
        load_half(source + HALF, X, q_c.index(1))
    else:
        load_half(source, X, q_c.index(0))
        load_rotated(source, q_r)
    async_copy.commit_group()


@gluon.jit
def _scores(
    q, index, scale_log2, K, row0, rows, blocks, splits, tiles, lse, q_c, q_r, k_c, k_r, weight, factor, full,
    scaled, ready, free, done,
):  # fmt: skip
    """Weights of each tile into ``weight``, and into ``factor`` what the sums so far shrink by."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    head_axis: gl.constexpr = gl.SliceLayout(1, layout)
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=layout)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    items = rows * blocks * splits
    step = gl.num_programs(0)
    item0 = gl.program_id(0)
    row, first, last = _place(item0, row0, rows, blocks, K, tiles)
    _load_query(q, item0, row, blocks, q_c, q_r, True)
    _load_query(q, item0, row, blocks, q_c, q_r, False)
    tile = 0  # which of the two
    phase = 0
    result = 0
    for item in range(item0, items, step):
        row, first, last = _place(item, row0, rows, blocks, K, tiles)
        index_row = index + row.to(gl.int64) * K
        s = gl.load(index_row + first + lane, mask=first + lane < last, other=-1)
        m = gl.full([HEADS], float("-inf"), gl.float32, layout=head_axis)
        norm = gl.full([HEADS], 0.0, gl.float32, layout=head_axis)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        held = q_c.index(1).load(operand)
        gl.thread_barrier()
        more = item + step < items
        row_next, _, _ = _place(gl.minimum(item + step, items - 1), row0, rows, blocks, K, tiles)
        if more:
            _load_query(q, item + step, row_next, blocks, q_c, q_r, True)
        for number in range(tiles):
            mbarrier.wait(full.index(2 * tile), phase)
            fence_async_shared()
            half0 = k_c.index(2 * tile).permute((1, 0))
            score = warpgroup_mma(q_c.index(0), half0, zero, use_acc=False, is_async=True)
            mbarrier.wait(full.index(2 * tile + 1), phase)
            fence_async_shared()
            half1 = k_c.index(2 * tile + 1).permute((1, 0))
            score = warpgroup_mma(held, half1, score, is_async=True)
            score = warpgroup_mma(q_r, k_r.index(tile).permute((1, 0)), score, is_async=True)
            present = s >= 0
            ahead = first + (number + 1) * TILE + lane
            s = gl.load(index_row + ahead, mask=ahead < last, other=-1)
            score = warpgroup_mma_wait(0, deps=[score])
            score = gl.where(gl.expand_dims(present, 0), score * scale_log2, float("-inf"))
            m_new = gl.maximum(m, gl.max(score, 1))
            safe = gl.where(m_new == float("-inf"), 0.0, m_new)  # no key so far: exp2(-inf - 0) = 0
            shrink = gl.exp2(m - safe)
            m = m_new
            # Read two tiles ago: ``free`` was waited for since.
            factor.index(tile).store(shrink)
            gl.thread_barrier()
            mbarrier.arrive(scaled.index(tile), count=1)
            p = gl.exp2(score - gl.expand_dims(safe, 1))
            mbarrier.wait(free, 1 - tile)
            weight.store(p.to(weight.dtype))
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(ready, count=1)
            norm = norm * shrink + gl.sum(p, 1)
            phase ^= tile
            tile ^= 1
        if more:
            _load_query(q, item + step, row_next, blocks, q_c, q_r, False)
        empty = norm == 0.0
        factor.index(2 + result).store(gl.where(empty, 0.0, 1.0 / gl.where(empty, 1.0, norm)))
        gl.thread_barrier()
        mbarrier.arrive(done.index(result), count=1)
        result ^= 1
        log = gl.where(empty, float("-inf"), (m + gl.log2(gl.where(empty, 1.0, norm))) * LN2)
        gl.store(lse + item.to(gl.int64) * HEADS + gl.arange(0, HEADS, layout=head_axis), log)


@gluon.jit
def _values(
    half: gl.constexpr, kv, index, T, S, K, row0, rows, blocks, splits, tiles, out, k_c, k_r, weight, factor,
    full, scaled, ready, free, done,
):  # fmt: skip
    """Half of the columns of the result, and the gather of the same columns, two tiles ahead: at an item's
    end those of the next.

    No fence stands before the product: the scores' warpgroup has seen the rows, and fenced before it
    signalled.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    # A result leaves the cache to the keys; what splits give is read again at once.
    stream: gl.constexpr = ".cs" if out.dtype.element_ty == gl.bfloat16 else ""
    head_axis: gl.constexpr = gl.SliceLayout(1, layout)
    items = rows * blocks * splits
    step = gl.num_programs(0)
    ahead = gl.program_id(0)
    ahead_tile = 0
    for i in gl.static_range(2):
        if ahead < items:
            row, first, last = _place(ahead, row0, rows, blocks, K, tiles)
            s, s_narrow = selected_rows(
                index + row.to(gl.int64) * K, first + ahead_tile * TILE, last, half, TILE
            )
            own = 2 * i + half
            gather(kv, row // T * S, s, s_narrow, half, k_c.index(own), k_r.index(i), full.index(own))
        ahead_tile += 1
        ahead = gl.where(ahead_tile == tiles, ahead + step, ahead)
        ahead_tile = gl.where(ahead_tile == tiles, 0, ahead_tile)
    tile = 0
    phase = 0
    result = 0
    turn = 0
    for item in range(gl.program_id(0), items, step):
        acc = gl.full([HEADS, HALF], 0.0, gl.float32, layout=layout)
        for _ in range(tiles):
            row, first, last = _place(gl.minimum(ahead, items - 1), row0, rows, blocks, K, tiles)
            s, s_narrow = selected_rows(
                index + row.to(gl.int64) * K, first + ahead_tile * TILE, last, half, TILE
            )
            mbarrier.wait(scaled.index(tile), phase)
            acc = acc * gl.expand_dims(factor.index(tile).load(head_axis), 1)
            mbarrier.wait(ready, tile)
            own = 2 * tile + half
            acc = warpgroup_mma(weight, k_c.index(own), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(free, count=1)
            if ahead < items:
                # The scores are done with the rotated parts, or there were no weights.
                gather(kv, row // T * S, s, s_narrow, half, k_c.index(own), k_r.index(tile), full.index(own))
            ahead_tile += 1
            ahead = gl.where(ahead_tile == tiles, ahead + step, ahead)
            ahead_tile = gl.where(ahead_tile == tiles, 0, ahead_tile)
            phase ^= tile
            tile ^= 1
        mbarrier.wait(done.index(result), turn)
        acc = acc * gl.expand_dims(factor.index(2 + result).load(head_axis), 1)
        turn ^= result
        result ^= 1
        head = gl.expand_dims(gl.arange(0, HEADS, layout=head_axis), 1)
        column = half * HALF + gl.expand_dims(gl.arange(0, HALF, layout=gl.SliceLayout(0, layout)), 0)
        place = out + item.to(gl.int64) * HEADS * LATENT + head * LATENT + column
        gl.store(place, acc.to(out.dtype.element_ty), cache_modifier=stream)
