"""Gradient of sparse MLA's queries for Hopper; see ``hopper.py`` for how the work is shared.

Shared memory: the query and its gradient (64 heads x 576 and x 512), the gathered rows, the score gradients
and probabilities of one tile. The warpgroup with the scores also adds up the rotated columns of ``dq``; the
others write score gradients and probabilities out while their product runs.
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
    LOG2E,
    ROTATED,
    WARPS,
    gather,
    load_heads,
    load_rotated,
    selected_rows,
)

# Rows of a tile, tiles in shared memory; registers of a thread as in ``hopper_forward``.
TILES, REGISTERS = (64, 1), (160, 184)


def launch_query_gradient(
    q, kv, flat, used, grad_out, out, lse, dq, weights, row, count, scale: float
) -> None:
    """Fills ``count`` rows of dq and of weights (chunk, 2N, K), from row ``row`` on; see
    ``backward.gradients``.
    """
    N, K = q.shape[2], flat.shape[-1]
    _query_gradient[(count, N // HEADS.value)](
        q,
        kv,
        flat,
        used,
        grad_out,
        out,
        lse,
        dq,
        weights,
        row,
        scale,
        N,
        K,
        *TILES,
        *REGISTERS,
        num_warps=WARPS,
    )


@gluon.jit(do_not_specialize=["row0"])
def _query_gradient(
    q, kv, flat, used, grad_out, out, lse, dq, weights, row0, scale, N, K,
    TILE: gl.constexpr, COUNT: gl.constexpr,
    GRADIENT_REGISTERS: gl.constexpr, SCORES_REGISTERS: gl.constexpr,
):  # fmt: skip
    X: gl.constexpr = LATENT + ROTATED
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    narrow: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * TILE, element_bitwidth=16, rank=2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q.dtype.element_ty
    local = gl.program_id(0).to(gl.int64)
    row = row0 + local
    head0 = gl.program_id(1) * HEADS

    q_c = gl.allocate_shared_memory(dtype, [2, HEADS, HALF], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    g = gl.allocate_shared_memory(dtype, [2, HEADS, HALF], shared)
    k_c = gl.allocate_shared_memory(dtype, [2 * COUNT, TILE, HALF], shared)  # each tile in halves
    k_r = gl.allocate_shared_memory(dtype, [COUNT, TILE, ROTATED], shared)
    p_s = gl.allocate_shared_memory(dtype, [HEADS, TILE], narrow)
    ds_s = gl.allocate_shared_memory(dtype, [HEADS, TILE], narrow)
    full = gl.allocate_shared_memory(gl.int64, [2 * COUNT, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    ready, free, loaded = others.index(0), others.index(1), others.index(2)
    for i in gl.static_range(2 * COUNT):
        mbarrier.init(full.index(i), count=128)
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=2)
    mbarrier.init(loaded, count=1)

    base = row * N + head0
    load_heads(q + base * X, X, q_c.index(0), q_c.index(1))
    load_heads(grad_out + base * LATENT, LATENT, g.index(0), g.index(1))
    load_rotated(q + base * X, q_r)
    async_copy.commit_group()

    own = flat + row * K
    last = gl.load(used + row)
    dq_row = dq + base * X
    ds_out = weights + (local * 2 * N + head0) * K
    p_out = ds_out + N.to(gl.int64) * K
    gl.warp_specialize(
        [
            (
                _first,
                (kv, own, last, K, dq_row, ds_out, k_c, k_r, ds_s, ds_s, full, ready, free, loaded, TILE,
                 COUNT),
            ),
            (_second, (kv, own, last, K, dq_row, p_out, k_c, k_r, p_s, ds_s, full, ready, free, TILE, COUNT)),
            (
                _scores,
                (own, last, scale, lse + base, out + base * LATENT, grad_out + base * LATENT, dq_row,
                 q_c, q_r, g, k_c, k_r, p_s, ds_s, full, ready, free, loaded, TILE, COUNT),
            ),
        ],
        [4, 4],
        [GRADIENT_REGISTERS, SCORES_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _scores(
    flat, last, scale, lse, out, grad, dq, q_c, q_r, g, k_c, k_r, p_s, ds_s, full, ready, free, loaded,
    TILE: gl.constexpr, COUNT: gl.constexpr,
):  # fmt: skip
    """Score gradients (times scale) and probabilities of each tile; the rotated columns of dq."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    rotated: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    block: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head_axis: gl.constexpr = gl.SliceLayout(1, layout)
    cell = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, block)), 1) * LATENT
    cell += gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(0, block)), 0)
    total = gl.full([HEADS, 64], 0.0, gl.float32, layout=block)
    for c0 in range(0, LATENT, 64):
        total += gl.load(out + c0 + cell).to(gl.float32) * gl.load(grad + c0 + cell).to(gl.float32)
    delta = gl.convert_layout(gl.sum(total, 1), head_axis)
    lse2 = gl.load(lse + gl.arange(0, HEADS, layout=head_axis)) * LOG2E
    lse2 = gl.where(lse2 == float("-inf"), 0.0, lse2)
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=layout)
    dq_r = gl.full([HEADS, ROTATED], 0.0, gl.float32, layout=rotated)
    tile = 0
    phase = 0
    turn = 1
    s = gl.load(flat + lane, mask=lane < last, other=-1)
    mbarrier.wait(loaded, 0)
    for k0 in range(0, last, TILE):
        mbarrier.wait(full.index(2 * tile), phase)
        fence_async_shared()
        half0 = k_c.index(2 * tile).permute((1, 0))
        score = warpgroup_mma(q_c.index(0), half0, zero, use_acc=False, is_async=True)
        dp = warpgroup_mma(g.index(0), half0, zero, use_acc=False, is_async=True)
        mbarrier.wait(full.index(2 * tile + 1), phase)
        fence_async_shared()
        half1 = k_c.index(2 * tile + 1).permute((1, 0))
        score = warpgroup_mma(q_c.index(1), half1, score, is_async=True)
        score = warpgroup_mma(q_r, k_r.index(tile).permute((1, 0)), score, is_async=True)
        dp = warpgroup_mma(g.index(1), half1, dp, is_async=True)
        present = s >= 0
        ahead = k0 + TILE + lane
        s = gl.load(flat + ahead, mask=ahead < last, other=-1)
        score, dp = warpgroup_mma_wait(0, deps=[score, dp])
        p = gl.exp2(score * (scale * LOG2E) - gl.expand_dims(lse2, 1))
        p = gl.where(gl.expand_dims(present, 0), p, 0.0)
        ds = (p * (dp - gl.expand_dims(delta, 1)) * scale).to(ds_s.dtype)
        left = gl.convert_layout(ds, gl.DotOperandLayout(0, rotated, 2))
        dq_r = warpgroup_mma(left, k_r.index(tile), dq_r, is_async=True)
        mbarrier.wait(free, turn)
        turn ^= 1
        ds_s.store(ds)
        p_s.store(p.to(p_s.dtype))
        fence_async_shared()
        dq_r = warpgroup_mma_wait(0, deps=[dq_r])
        gl.thread_barrier()
        mbarrier.arrive(ready, count=1)
        tile += 1
        if tile == COUNT:
            tile = 0
            phase ^= 1
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, rotated)), 1) * (LATENT + ROTATED)
    column = gl.expand_dims(LATENT + gl.arange(0, ROTATED, layout=gl.SliceLayout(0, rotated)), 0)
    gl.store(dq + head + column, dq_r.to(dq.dtype.element_ty))


@gluon.jit
def _first(
    kv, flat, last, K, dq, written, k_c, k_r, own_s, ds_s, full, ready, free, loaded,
    TILE: gl.constexpr, COUNT: gl.constexpr,
):  # fmt: skip
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(loaded, count=1)
    _gradient(0, kv, flat, last, K, dq, written, k_c, k_r, own_s, ds_s, full, ready, free, TILE, COUNT)


@gluon.jit
def _second(
    kv, flat, last, K, dq, written, k_c, k_r, own_s, ds_s, full, ready, free,
    TILE: gl.constexpr, COUNT: gl.constexpr,
):  # fmt: skip
    _gradient(1, kv, flat, last, K, dq, written, k_c, k_r, own_s, ds_s, full, ready, free, TILE, COUNT)


@gluon.jit
def _gradient(
    half: gl.constexpr, kv, flat, last, K, dq, written, k_c, k_r, own_s, ds_s, full, ready, free,
    TILE: gl.constexpr, COUNT: gl.constexpr,
):  # fmt: skip
    """Half of the latent columns of dq, and the gather of the same columns. ``own_s`` goes to ``written``."""
    X: gl.constexpr = LATENT + ROTATED
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    export: gl.constexpr = gl.BlockedLayout([1, 8], [256 // TILE, TILE // 8], [4, 1], [1, 0])
    acc = gl.full([HEADS, HALF], 0.0, gl.float32, layout=layout)
    for i in gl.static_range(COUNT):
        if i * TILE < last:
            s, s_narrow = selected_rows(flat, i * TILE, last, half, TILE)
            gather(kv, 0, s, s_narrow, half, k_c.index(2 * i + half), k_r.index(i), full.index(2 * i + half))
    place = written + gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, export)), 1) * K
    lane = gl.expand_dims(gl.arange(0, TILE, layout=gl.SliceLayout(0, export)), 0)
    tile = 0
    turn = 0
    for k0 in range(0, last, TILE):
        ahead = k0 + COUNT * TILE
        s, s_narrow = selected_rows(flat, ahead, last, half, TILE)
        mbarrier.wait(ready, turn)
        turn ^= 1
        own = 2 * tile + half
        acc = warpgroup_mma(ds_s, k_c.index(own), acc, is_async=True)
        gl.store(place + k0 + lane, own_s.load(export), mask=k0 + lane < K)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free, count=1)
        if ahead < last:
            gather(kv, 0, s, s_narrow, half, k_c.index(own), k_r.index(tile), full.index(own))
        tile += 1
        if tile == COUNT:
            tile = 0
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, layout)), 1) * X
    column = gl.expand_dims(half * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(0, layout)), 0)
    gl.store(dq + head + column, acc.to(dq.dtype.element_ty))
