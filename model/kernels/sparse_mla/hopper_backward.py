"""Gradient of sparse MLA's queries for Hopper; see ``hopper.py``.

Shared memory: the query and the gradient of its result (64 heads x 576 and x 512), the gathered rows, the
score gradients and probabilities of one tile. One warpgroup turns scores into those two and adds up the
rotated columns of ``dq``. Two hold half of the other columns each and gather the same columns of the tile
that comes next; they have score gradients and probabilities copied out while their product runs. There is no
room for a second tile, so its rows are asked for into the cache a tile ahead.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from model.kernels.sparse_mla.hopper import (
    HEADS,
    LATENT,
    QUARTER,
    ROTATED,
    WARPS,
    gather,
    gather_rotated,
    load_half,
    load_rotated,
    prefetch,
    selected_rows,
    signal,
    weight_tiles,
)
from model.kernels.sparse_mla.rows import LOG2E

TILE = gl.constexpr(64)
# Of a thread of the warpgroups with the gradient and of the one with the scores.
REGISTERS = (176, 152)


def launch_query_gradient(
    q, kv, flat, used, grad_out, out, lse, dq, weights, row, count, scale: float
) -> None:
    """Fills ``count`` rows of dq from row ``row`` on, and of weights (chunk, 2N, K) from the first on, each
    up to the tile of its last selected key; see ``backward.gradients``.
    """
    N, K = q.shape[2], flat.shape[-1]
    _query_gradient[(count, N // HEADS.value)](
        q, kv, flat, used, grad_out, out, lse, dq, weight_tiles(weights), row, scale, N, K, *REGISTERS,
        num_warps=WARPS,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["row0"])
def _query_gradient(
    q, kv, flat, used, grad_out, out, lse, dq, weights, row0, scale, N, K,
    GRADIENT_REGISTERS: gl.constexpr, SCORES_REGISTERS: gl.constexpr,
):  # fmt: skip
    X: gl.constexpr = LATENT + ROTATED
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q.dtype.element_ty
    local = gl.program_id(0).to(gl.int64)
    row = row0 + local
    head0 = gl.program_id(1) * HEADS

    q_c = gl.allocate_shared_memory(dtype, [4, HEADS, QUARTER], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    g = gl.allocate_shared_memory(dtype, [4, HEADS, QUARTER], shared)
    k_c = gl.allocate_shared_memory(dtype, [4, TILE, QUARTER], shared)
    k_r = gl.allocate_shared_memory(dtype, [TILE, ROTATED], shared)
    p_s = gl.allocate_shared_memory(dtype, [HEADS, TILE], shared)
    ds_s = gl.allocate_shared_memory(dtype, [HEADS, TILE], shared)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], barrier)
    others = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    ready, free, loaded = others.index(0), others.index(1), others.index(2)
    for i in gl.static_range(4):
        mbarrier.init(full.index(i), count=128)
    mbarrier.init(ready, count=1)
    mbarrier.init(free, count=2)
    mbarrier.init(loaded, count=1)

    base = row * N + head0
    for i in gl.static_range(0, 4, 2):
        load_half(q + base * X + i * QUARTER, X, q_c.index(i), q_c.index(i + 1))
        load_half(grad_out + base * LATENT + i * QUARTER, LATENT, g.index(i), g.index(i + 1))
    load_rotated(q + base * X, q_r)
    async_copy.commit_group()

    own = flat + row * K
    last = gl.load(used + row)
    dq_row = dq + base * X
    ds_row = gl.program_id(0) * 2 * N + head0
    gl.warp_specialize(
        [
            (
                _first,
                (kv, own, last, dq_row, weights, ds_row, k_c, k_r, ds_s, ds_s, full, ready, free, loaded),
            ),
            (
                _gradient,
                (1, kv, own, last, dq_row, weights, ds_row + N, k_c, k_r, p_s, ds_s, full, ready, free),
            ),
            (
                _scores,
                (own, last, scale, lse + base, out + base * LATENT, grad_out + base * LATENT, dq_row,
                 q_c, q_r, g, k_c, k_r, p_s, ds_s, full, ready, free, loaded),
            ),
        ],
        [4, 4],
        [GRADIENT_REGISTERS, SCORES_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _scores(
    flat, last, scale, lse, out, grad, dq, q_c, q_r, g, k_c, k_r, p_s, ds_s, full, ready, free, loaded,
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
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=layout)
    dq_r = gl.full([HEADS, ROTATED], 0.0, gl.float32, layout=rotated)
    phase = 0
    turn = 1
    nil = gl.program_id(2)  # as in ``hopper_forward``
    s = gl.load(flat + lane, mask=lane < last, other=-1)
    mbarrier.wait(loaded, 0)
    for k0 in range(0, last, TILE):
        # In the order in which they arrive, 0, 2, 1, 3: each of the others copies one of its quarters first.
        score = zero
        dp = zero
        for i in gl.static_range(4):
            quarter = i % 2 * 2 + i // 2
            mbarrier.wait(full.index(quarter), phase)
            fence_async_shared()
            part = k_c.index(nil + quarter).permute((1, 0))
            score = warpgroup_mma(q_c.index(nil + quarter), part, score, use_acc=i > 0, is_async=True)
            if i == 1:  # the rotated parts have come, too
                score = warpgroup_mma(q_r, k_r.permute((1, 0)), score, is_async=True)
            dp = warpgroup_mma(g.index(nil + quarter), part, dp, use_acc=i > 0, is_async=True)
        phase ^= 1
        nil = nil * phase
        present = s >= 0
        ahead = k0 + TILE + lane
        s = gl.load(flat + ahead, mask=ahead < last, other=-1)
        score, dp = warpgroup_mma_wait(0, deps=[score, dp])
        p = gl.exp2(score * (scale * LOG2E) - gl.expand_dims(lse2, 1))
        p = gl.where(gl.expand_dims(present, 0), p, 0.0)
        ds = (p * (dp - gl.expand_dims(delta, 1)) * scale).to(ds_s.dtype)
        left = gl.convert_layout(ds, gl.DotOperandLayout(0, rotated, 2))
        dq_r = warpgroup_mma(left, k_r, dq_r, is_async=True)
        mbarrier.wait(free, turn)
        turn ^= 1
        ds_s.store(ds)
        p_s.store(p.to(p_s.dtype))
        fence_async_shared()
        dq_r = warpgroup_mma_wait(0, deps=[dq_r])
        gl.thread_barrier()
        mbarrier.arrive(ready, count=1)
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, rotated)), 1) * (LATENT + ROTATED)
    column = gl.expand_dims(LATENT + gl.arange(0, ROTATED, layout=gl.SliceLayout(0, rotated)), 0)
    gl.store(dq + head + column, dq_r.to(dq.dtype.element_ty))


@gluon.jit
def _first(kv, flat, last, dq, weights, row, k_c, k_r, own_s, ds_s, full, ready, free, loaded):
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(loaded, count=1)
    _gradient(0, kv, flat, last, dq, weights, row, k_c, k_r, own_s, ds_s, full, ready, free)


@gluon.jit
def _gradient(half: gl.constexpr, kv, flat, last, dq, weights, row, k_c, k_r, own_s, ds_s, full, ready, free):
    """Half of the latent columns of dq, and the gather of the same columns. ``own_s`` goes to the rows of
    ``weights`` from ``row`` on.
    """
    X: gl.constexpr = LATENT + ROTATED
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    own0: gl.constexpr = 2 * half
    own1: gl.constexpr = 2 * half + 1
    acc0 = gl.full([HEADS, QUARTER], 0.0, gl.float32, layout=layout)
    acc1 = gl.full([HEADS, QUARTER], 0.0, gl.float32, layout=layout)
    if last > 0:
        s, s_narrow = selected_rows(flat, 0, last, TILE)
        if half == 1:
            gather_rotated(kv, 0, s_narrow, k_r)
        gather(kv, 0, s, own0, k_c.index(own0))
        signal(full.index(own0))
        gather(kv, 0, s, own1, k_c.index(own1))
        signal(full.index(own1))
    turn = 0
    for k0 in range(0, last, TILE):
        ahead = k0 + TILE
        s, s_narrow = selected_rows(flat, ahead, last, TILE)
        if half == 0:
            prefetch(kv, 0, flat, ahead, last, TILE)
        mbarrier.wait(ready, turn)
        turn ^= 1
        acc0 = warpgroup_mma(ds_s, k_c.index(own0), acc0, is_async=True)
        acc1 = warpgroup_mma(ds_s, k_c.index(own1), acc1, is_async=True)
        tma.async_copy_shared_to_global(weights, [row, k0], own_s)
        # The scores' warpgroup is done with the rotated parts.
        if half == 1:
            if ahead < last:
                gather_rotated(kv, 0, s_narrow, k_r)
        acc0 = warpgroup_mma_wait(1, deps=[acc0])
        if ahead < last:
            gather(kv, 0, s, own0, k_c.index(own0))
            signal(full.index(own0))
        acc1 = warpgroup_mma_wait(0, deps=[acc1])
        tma.store_wait(0)
        mbarrier.arrive(free, count=1)
        if ahead < last:
            gather(kv, 0, s, own1, k_c.index(own1))
            signal(full.index(own1))
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, layout)), 1) * X
    column = own0 * QUARTER + gl.expand_dims(gl.arange(0, QUARTER, layout=gl.SliceLayout(0, layout)), 0)
    gl.store(dq + head + column, acc0.to(dq.dtype.element_ty))
    gl.store(dq + head + column + QUARTER, acc1.to(dq.dtype.element_ty))
