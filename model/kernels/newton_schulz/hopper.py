"""Symmetric products for Hopper, in Gluon (``model/kernels/hopper.py``).

A program takes one tile after the other. One warp copies the operands' tiles, three steps ahead; two
warpgroups multiply. Results leave through shared memory by the copy engine, each block and its mirror image,
while the next tile is multiplied; the base comes the same way. Tiles have 128 rows and 256 columns, and 128
where the right half would lie above the diagonal: those come last, so that they fill the last round.

L matrices, A rows, K summed columns. Rows and columns of tiles are counted in blocks of 128.
"""

import torch
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

EDGE, INNER, STAGES = gl.constexpr(128), gl.constexpr(64), gl.constexpr(3)
# The step of a product at which its base is fetched: what was stored there before has left by then.
FETCH = gl.constexpr(4)
COPY_REGISTERS = 40


def fits(x_LAK: torch.Tensor) -> bool:
    """Whether the kernel takes these operands: bfloat16 or float16, A a multiple of 256."""
    _, A, K = x_LAK.shape
    if x_LAK.dtype not in (torch.bfloat16, torch.float16) or A % (2 * EDGE.value) or K % 8:
        return False
    return K > FETCH.value * INNER.value and available(x_LAK.view(torch.bfloat16))


def launch(left_LAK, right_LAK, base_LAA, scale_L, out_LAA, numbers: tuple, has_base: bool) -> None:
    """Fills out as ``symmetric_product`` says; ``numbers`` are alpha, beta and diagonal. All of 16 bits but
    the scale.
    """
    L, A, K = left_LAK.shape
    edge = A // EDGE.value
    wide, narrow = L * (edge // 2) ** 2, L * (edge // 2)
    programs = min(wide + narrow, torch.cuda.get_device_properties(out_LAA.device).multi_processor_count)
    _kernel[(programs,)](
        _tiles(left_LAK, 1, INNER), _tiles(right_LAK, 2, INNER), _tiles(base_LAA, 1, EDGE), scale_L,
        _tiles(out_LAA, 1, EDGE), edge, K, *numbers, wide, wide + narrow, programs, HAS_BASE=has_base,
        REGISTERS=COPY_REGISTERS, num_warps=8,
    )  # fmt: skip


def _tiles(x: torch.Tensor, blocks: int, columns: gl.constexpr) -> TensorDescriptor:
    """All matrices one under another, in tiles of so many blocks of rows."""
    shared = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [blocks * EDGE.value, columns.value], shared)


@gluon.jit(do_not_specialize=["edge", "wide", "total", "programs"])
def _kernel(
    left, right, base, scale, out, edge, K, alpha, beta, diagonal, wide, total, programs,
    HAS_BASE: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    x = gl.allocate_shared_memory(left.dtype, [STAGES, EDGE, INNER], left.layout)
    y = gl.allocate_shared_memory(right.dtype, [STAGES, 2 * EDGE, INNER], right.layout)
    staging = gl.allocate_shared_memory(out.dtype, [2, EDGE, EDGE], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _multiply,
                (base, scale, out, edge, K, alpha, beta, diagonal, wide, total, programs, x, y, full, free,
                 staging, arrived, HAS_BASE),
            ),
            (_copy, (left, right, edge, K, wide, total, programs, x, y, full, free)),
        ],
        [1],
        [REGISTERS],
    )  # fmt: skip


@gluon.jit
def _place(number, edge, wide):
    """Matrix, row and first column of a tile. Rows 2 m and 2 m + 1 have m and m + 1 wide tiles, so m^2 come
    before them; of all matrices' tiles ``wide`` are wide.
    """
    pairs = edge // 2
    n = number % (pairs * pairs)
    m = gl.sqrt(n.to(gl.float32)).to(gl.int32)
    m = gl.where(m * m > n, m - 1, m)
    m = gl.where((m + 1) * (m + 1) <= n, m + 1, m)
    rest = n - m * m
    odd = rest >= m
    narrow = number - wide
    diagonal = narrow % pairs * 2
    matrix = gl.where(narrow < 0, number // (pairs * pairs), narrow // pairs)
    row = gl.where(narrow < 0, gl.where(odd, 2 * m + 1, 2 * m), diagonal)
    column = gl.where(narrow < 0, gl.where(odd, rest - m, rest) * 2, diagonal)
    return matrix, row, column


@gluon.jit
def _copy(left, right, edge, K, wide, total, programs, x, y, full, free):
    stage = 0
    phase = 0
    for number in range(gl.program_id(0), total, programs):
        matrix, i, j = _place(number, edge, wide)
        row = (matrix * edge + i) * EDGE
        column = (matrix * edge + j) * EDGE
        for k in range(0, K, INNER):
            mbarrier.wait(free.index(stage), phase ^ 1)
            # The right half of a narrow tile comes, too, and is not read.
            mbarrier.expect(full.index(stage), 3 * EDGE * INNER * 2)
            tma.async_copy_global_to_shared(left, [row, k], full.index(stage), x.index(stage))
            tma.async_copy_global_to_shared(right, [column, k], full.index(stage), y.index(stage))
            stage += 1
            phase = gl.where(stage == STAGES, phase ^ 1, phase)
            stage = gl.where(stage == STAGES, 0, stage)


@gluon.jit
def _multiply(
    base, scale, out, edge, K, alpha, beta, diagonal, wide, total, programs, x, y, full, free, staging,
    arrived, HAS_BASE: gl.constexpr,
):  # fmt: skip
    stage = 0
    phase = 0
    turn = 0
    for number in range(gl.program_id(0), total, programs):
        matrix, i, j = _place(number, edge, wide)
        factor = gl.load(scale + matrix)
        above = matrix * edge
        if number < wide:
            stage, phase, turn = _tile(
                base, out, above, i, j, K, alpha, beta, diagonal, factor, x, y, full, free, staging, arrived,
                stage, phase, turn, 2, HAS_BASE,
            )  # fmt: skip
        else:
            stage, phase, turn = _tile(
                base, out, above, i, j, K, alpha, beta, diagonal, factor, x, y, full, free, staging, arrived,
                stage, phase, turn, 1, HAS_BASE,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def _tile(
    base, out, above, i, j, K, alpha, beta, diagonal, factor, x, y, full, free, staging, arrived, stage,
    phase, turn, BLOCKS: gl.constexpr, HAS_BASE: gl.constexpr,
):  # fmt: skip
    """A tile of one or two blocks; returns where the ring of operands and the base's barrier stand."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCKS * EDGE, 16])
    held = staging._reinterpret(base.dtype, [2, EDGE, EDGE], base.layout)
    row = (above + i) * EDGE
    acc = gl.zeros([EDGE, BLOCKS * EDGE], gl.float32, layout=layout)
    before = 0
    for k in range(0, K, INNER):
        mbarrier.wait(full.index(stage), phase)
        right = y.index(stage).slice(0, BLOCKS * EDGE).permute((1, 0))
        acc = warpgroup_mma(x.index(stage), right, acc, is_async=True)
        # The product before this one is done: its operands may be overwritten.
        acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(free.index(before), count=1, pred=k > 0)
        if HAS_BASE:
            if k == FETCH * INNER:
                tma.store_wait(0)
                gl.thread_barrier()
                mbarrier.expect(arrived, EDGE * BLOCKS * EDGE * 2)
                for n in gl.static_range(BLOCKS):
                    tma.async_copy_global_to_shared(base, [row, (j + n) * EDGE], arrived, held.index(n))
        before = stage
        stage += 1
        phase = gl.where(stage == STAGES, phase ^ 1, phase)
        stage = gl.where(stage == STAGES, 0, stage)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(free.index(before), count=1)
    if HAS_BASE:
        mbarrier.wait(arrived, turn)
        turn ^= 1
    else:
        tma.store_wait(0)
        gl.thread_barrier()
    if BLOCKS == 1:
        a = _value(acc, held.index(0), i, j, alpha, beta, diagonal, factor, out.dtype, HAS_BASE)
        if HAS_BASE:
            gl.thread_barrier()
        _send(a, staging.index(0), staging.index(0), out, row, j * EDGE)
    else:
        half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, EDGE, 16])
        a, b = gl.split(acc.reshape([EDGE, 2, EDGE]).permute((0, 2, 1)))
        a = gl.convert_layout(a, half, assert_trivial=True)
        b = gl.convert_layout(b, half, assert_trivial=True)
        a = _value(a, held.index(0), i, j, alpha, beta, diagonal, factor, out.dtype, HAS_BASE)
        b = _value(b, held.index(1), i, j + 1, alpha, beta, diagonal, factor, out.dtype, HAS_BASE)
        if HAS_BASE:
            gl.thread_barrier()
        _send(a, staging.index(0), staging.index(0), out, row, j * EDGE)
        _send(b, staging.index(1), staging.index(1), out, row, (j + 1) * EDGE)
        tma.store_wait(1)
        gl.thread_barrier()
        mirrored = staging.index(0).permute((1, 0))
        _send(a, mirrored, staging.index(0), out, (above + j) * EDGE, i * EDGE)
        if j + 1 < i:
            tma.store_wait(1)
            gl.thread_barrier()
            mirrored = staging.index(1).permute((1, 0))
            _send(b, mirrored, staging.index(1), out, (above + j + 1) * EDGE, i * EDGE)
    return stage, phase, turn


@gluon.jit
def _value(acc, block, i, j, alpha, beta, diagonal, factor, kind: gl.constexpr, HAS_BASE: gl.constexpr):
    """A block of the result."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, EDGE, 16])
    acc = acc * alpha
    if HAS_BASE:
        acc += block.load(layout).to(gl.float32) * beta
    r = i * EDGE + gl.arange(0, EDGE, layout=gl.SliceLayout(1, layout))
    c = j * EDGE + gl.arange(0, EDGE, layout=gl.SliceLayout(0, layout))
    acc += gl.where(gl.expand_dims(r, 1) == gl.expand_dims(c, 0), diagonal, 0.0)
    return (acc * factor).to(kind)


@gluon.jit
def _send(value, view, block, out, row, column):
    """Stores a block, as ``view`` turns it, in shared memory and starts its copy from there."""
    view.store(value)
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(out, [row, column], block)
