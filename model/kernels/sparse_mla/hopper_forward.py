"""Sparse MLA's forward pass for Hopper; see ``hopper.py`` for how the work is shared.

Shared memory: the query (64 heads x 576), two tiles of 64 gathered rows, one tile of weights. While the
values of tile j are added up, the scores of tile j + 1 are computed and tile j + 2 is on its way.
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
    HALF,
    HEADS,
    LATENT,
    LN2,
    LOG2E,
    ROTATED,
    WARPS,
    gather,
    load_heads,
    load_rotated,
    selected_rows,
)

TILE = gl.constexpr(64)
# Registers of a thread: of the second values' warpgroup, and of the scores'; the first has what is left.
REGISTERS = (184, 136)


def launch(q, kv, index, out, lse, scale: float, splits: int) -> None:
    """Fills out (splits, B, T, N, C) and lse (splits, B, T, N) from q (B, T, N, X), kv (B, S, X), index (B,
    T, K).
    """
    B, T, N, _ = q.shape
    _forward[(B * T, N // HEADS.value, splits)](
        q, kv, index, out, lse, scale * LOG2E.value, T, kv.shape[1], N, index.shape[-1], B * T, splits,
        *REGISTERS, num_warps=WARPS,
    )  # fmt: skip


@gluon.jit
def _forward(
    q, kv, index, out, lse, scale_log2, T, S, N, K, rows, splits,
    VALUES_REGISTERS: gl.constexpr, SCORES_REGISTERS: gl.constexpr,
):  # fmt: skip
    X: gl.constexpr = LATENT + ROTATED
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q.dtype.element_ty
    row = gl.program_id(0)
    head0 = gl.program_id(1) * HEADS
    split = gl.program_id(2)

    q_c = gl.allocate_shared_memory(dtype, [2, HEADS, HALF], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    k_c = gl.allocate_shared_memory(dtype, [4, TILE, HALF], shared)  # tile 0 in halves, tile 1 in halves
    k_r = gl.allocate_shared_memory(dtype, [2, TILE, ROTATED], shared)
    weight = gl.allocate_shared_memory(dtype, [HEADS, TILE], shared)
    factor = gl.allocate_shared_memory(gl.float32, [3, HEADS], flat)  # of a tile, of the next, of the result
    full = gl.allocate_shared_memory(gl.int64, [4, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [5, 1], barrier)
    scaled, ready, free = others.index(0), others.index(1), others.index(2)
    loaded, done = others.index(3), others.index(4)
    for i in gl.static_range(4):
        mbarrier.init(full.index(i), count=128)
    mbarrier.init(scaled, count=1)
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=2)
    mbarrier.init(loaded, count=1)
    mbarrier.init(done, count=1)

    q_row = q + (row.to(gl.int64) * N + head0) * X
    load_heads(q_row, X, q_c.index(0), q_c.index(1))
    load_rotated(q_row, q_r)
    async_copy.commit_group()

    tiles = gl.cdiv(gl.cdiv(K, TILE), splits)
    first = split * tiles * TILE
    last = gl.minimum(first + tiles * TILE, K)
    base = row // T * S
    index_row = index + row.to(gl.int64) * K
    place = (split.to(gl.int64) * rows + row) * N + head0
    out_row = out + place * LATENT
    gl.warp_specialize(
        [
            (
                _first_values,
                (kv, index_row, base, first, last, out_row, k_c, k_r, weight, factor,
                 full, scaled, ready, free, loaded, done),
            ),
            (
                _second_values,
                (kv, index_row, base, first, last, out_row, k_c, k_r, weight, factor,
                 full, scaled, ready, free, done),
            ),
            (
                _scores,
                (index_row, scale_log2, first, last, lse + place, q_c, q_r, k_c, k_r, weight, factor,
                 full, scaled, ready, free, loaded, done),
            ),
        ],
        [4, 4],
        [VALUES_REGISTERS, SCORES_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _scores(
    index_row, scale_log2, first, last, lse, q_c, q_r, k_c, k_r, weight, factor, full, scaled, ready, free,
    loaded, done,
):  # fmt: skip
    """Weights of each tile into ``weight``, and into ``factor`` what the sums so far shrink by."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    head_axis: gl.constexpr = gl.SliceLayout(1, layout)
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    m = gl.full([HEADS], float("-inf"), gl.float32, layout=head_axis)
    norm = gl.full([HEADS], 0.0, gl.float32, layout=head_axis)
    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=layout)
    tile = 0  # which of the two
    phase = 0
    s = gl.load(index_row + first + lane, mask=first + lane < last, other=-1)
    mbarrier.wait(loaded, 0)
    for k0 in range(first, last, TILE):
        mbarrier.wait(full.index(2 * tile), phase)
        fence_async_shared()
        half0 = k_c.index(2 * tile).permute((1, 0))
        score = warpgroup_mma(q_c.index(0), half0, zero, use_acc=False, is_async=True)
        mbarrier.wait(full.index(2 * tile + 1), phase)
        fence_async_shared()
        half1 = k_c.index(2 * tile + 1).permute((1, 0))
        score = warpgroup_mma(q_c.index(1), half1, score, is_async=True)
        score = warpgroup_mma(q_r, k_r.index(tile).permute((1, 0)), score, is_async=True)
        present = s >= 0
        ahead = k0 + TILE + lane
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
        mbarrier.arrive(scaled, count=1)
        p = gl.exp2(score - gl.expand_dims(safe, 1))
        mbarrier.wait(free, 1 - tile)
        weight.store(p.to(weight.dtype))
        fence_async_shared()
        gl.thread_barrier()
        mbarrier.arrive(ready, count=1)
        norm = norm * shrink + gl.sum(p, 1)
        phase ^= tile
        tile ^= 1
    empty = norm == 0.0
    factor.index(2).store(gl.where(empty, 0.0, 1.0 / gl.where(empty, 1.0, norm)))
    gl.thread_barrier()
    mbarrier.arrive(done, count=1)
    log = gl.where(empty, float("-inf"), (m + gl.log2(gl.where(empty, 1.0, norm))) * LN2)
    gl.store(lse + gl.arange(0, HEADS, layout=head_axis), log)


@gluon.jit
def _first_values(
    kv, index_row, base, first, last, out, k_c, k_r, weight, factor, full, scaled, ready, free, loaded, done
):
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(loaded, count=1)
    _values(
        0, kv, index_row, base, first, last, out, k_c, k_r, weight, factor, full, scaled, ready, free, done
    )


@gluon.jit
def _second_values(
    kv, index_row, base, first, last, out, k_c, k_r, weight, factor, full, scaled, ready, free, done
):
    _values(
        1, kv, index_row, base, first, last, out, k_c, k_r, weight, factor, full, scaled, ready, free, done
    )


@gluon.jit
def _values(
    half: gl.constexpr, kv, index_row, base, first, last, out, k_c, k_r, weight, factor, full, scaled, ready,
    free, done,
):  # fmt: skip
    """Half of the columns of the result, and the gather of the same columns.

    No fence stands before the product: the scores' warpgroup has seen the rows, and fenced before it
    signalled.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    head_axis: gl.constexpr = gl.SliceLayout(1, layout)
    acc = gl.full([HEADS, HALF], 0.0, gl.float32, layout=layout)
    for i in gl.static_range(2):
        if first + i * TILE < last:
            s, s_narrow = selected_rows(index_row, first + i * TILE, last, half, TILE)
            gather(
                kv, base, s, s_narrow, half, k_c.index(2 * i + half), k_r.index(i), full.index(2 * i + half)
            )
    tile = 0
    for k0 in range(first, last, TILE):
        ahead = k0 + 2 * TILE
        s, s_narrow = selected_rows(index_row, ahead, last, half, TILE)
        mbarrier.wait(scaled, tile)
        acc = acc * gl.expand_dims(factor.index(tile).load(head_axis), 1)
        mbarrier.wait(ready, tile)
        own = 2 * tile + half
        acc = warpgroup_mma(weight, k_c.index(own), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free, count=1)
        if ahead < last:
            # Its scores are done with the rotated parts, or there were no weights.
            gather(kv, base, s, s_narrow, half, k_c.index(own), k_r.index(tile), full.index(own))
        tile ^= 1
    mbarrier.wait(done, 0)
    acc = acc * gl.expand_dims(factor.index(2).load(head_axis), 1)
    head = gl.expand_dims(gl.arange(0, HEADS, layout=head_axis), 1)
    column = half * HALF + gl.expand_dims(gl.arange(0, HALF, layout=gl.SliceLayout(0, layout)), 0)
    gl.store(out + head * LATENT + column, acc.to(out.dtype.element_ty))
