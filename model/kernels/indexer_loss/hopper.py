"""The sparse indexer loss's target on Hopper (``model/kernels/hopper.py``): the mean over 64 heads of each
head's softmax over the selected rows.

Two warpgroups gather, half of the columns each, one multiplies, weights and sums; a program takes one query
after the other, and the rows of the next are on their way before one ends.
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
    LOG2E,
    ROTATED,
    WARPS,
    gather,
    load_heads,
    load_rotated,
    selected_rows,
)

TILE = gl.constexpr(64)
REGISTERS = (168, 168)


def launch_target(q, kv, flat, used, lse, target, row0: int, rows: int, scale: float) -> None:
    """Fills target (rows, K), each row up to its last selected key, for queries of q (B, T, 64, X) from
    ``row0`` on; ``flat`` and ``used`` as ``selection.flatten`` gives them.
    """
    _target[(min(rows, FILL),)](
        q,
        kv,
        flat,
        used,
        lse,
        target,
        scale * LOG2E.value,
        flat.shape[-1],
        row0,
        rows,
        *REGISTERS,
        num_warps=WARPS,
    )


@gluon.jit(do_not_specialize=["row0", "rows"])
def _target(
    q, kv, flat, used, lse, target, scale_log2, K, row0, rows,
    GATHER_REGISTERS: gl.constexpr, SCORES_REGISTERS: gl.constexpr,
):  # fmt: skip
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q.dtype.element_ty
    q_c = gl.allocate_shared_memory(dtype, [2, HEADS, HALF], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    k_c = gl.allocate_shared_memory(dtype, [4, TILE, HALF], shared)
    k_r = gl.allocate_shared_memory(dtype, [2, TILE, ROTATED], shared)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], barrier)
    free = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    for i in gl.static_range(4):
        mbarrier.init(full.index(i), count=128)
    for i in gl.static_range(2):
        mbarrier.init(free.index(i), count=1)
    gl.warp_specialize(
        [
            (_gather, (0, kv, flat, used, K, row0, rows, k_c, k_r, full, free)),
            (_gather, (1, kv, flat, used, K, row0, rows, k_c, k_r, full, free)),
            (
                _scores,
                (q, flat, used, lse, target, scale_log2, K, row0, rows, q_c, q_r, k_c, k_r, full, free),
            ),
        ],
        [4, 4],
        [GATHER_REGISTERS, SCORES_REGISTERS],
    )


@gluon.jit
def _gather(half: gl.constexpr, kv, flat, used, K, row0, rows, k_c, k_r, full, free):
    """Half of the latent columns of every tile of every row."""
    tile = 0
    turn = 1  # the first two tiles find their places empty
    for local in range(gl.program_id(0), rows, gl.num_programs(0)):
        own = flat + (row0 + local).to(gl.int64) * K
        last = gl.load(used + row0 + local)
        for k0 in range(0, last, TILE):
            s, s_narrow = selected_rows(own, k0, last, half, TILE)
            mbarrier.wait(free.index(tile), turn)
            place = 2 * tile + half
            gather(kv, 0, s, s_narrow, half, k_c.index(place), k_r.index(tile), full.index(place))
            turn ^= tile
            tile ^= 1


@gluon.jit
def _load_query(q, row, q_c, q_r):
    X: gl.constexpr = LATENT + ROTATED
    source = q + row.to(gl.int64) * HEADS * X
    load_heads(source, X, q_c.index(0), q_c.index(1))
    load_rotated(source, q_r)
    async_copy.commit_group()


@gluon.jit
def _scores(q, flat, used, lse, target, scale_log2, K, row0, rows, q_c, q_r, k_c, k_r, full, free):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, layout))
    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=layout)
    step = gl.num_programs(0)
    _load_query(q, row0 + gl.program_id(0), q_c, q_r)
    tile = 0
    phase = 0
    for local in range(gl.program_id(0), rows, step):
        row = (row0 + local).to(gl.int64)
        log = gl.load(lse + row * HEADS + head) * LOG2E
        log = gl.where(log == float("-inf"), 0.0, log)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        last = gl.load(used + row)
        for k0 in range(0, last, TILE):
            s = gl.load(flat + row * K + k0 + lane, mask=k0 + lane < last, other=-1)
            mbarrier.wait(full.index(2 * tile), phase)
            fence_async_shared()
            half0 = k_c.index(2 * tile).permute((1, 0))
            score = warpgroup_mma(q_c.index(0), half0, zero, use_acc=False, is_async=True)
            mbarrier.wait(full.index(2 * tile + 1), phase)
            fence_async_shared()
            half1 = k_c.index(2 * tile + 1).permute((1, 0))
            score = warpgroup_mma(q_c.index(1), half1, score, is_async=True)
            score = warpgroup_mma(q_r, k_r.index(tile).permute((1, 0)), score, is_async=True)
            score = warpgroup_mma_wait(0, deps=[score])
            mbarrier.arrive(free.index(tile), count=1)
            p = gl.exp2(score * scale_log2 - gl.expand_dims(log, 1))
            total = gl.sum(p, 0) * (1.0 / HEADS)
            place = target + local.to(gl.int64) * K + k0 + lane
            gl.store(place, gl.where(s >= 0, total, 0.0), mask=k0 + lane < last)
            phase ^= tile
            tile ^= 1
        if local + step < rows:
            _load_query(q, row0 + local + step, q_c, q_r)
