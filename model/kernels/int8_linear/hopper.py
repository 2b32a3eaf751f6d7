"""4-bit products of at most 64 tokens for Hopper, in Gluon (``model/kernels/hopper.py``).

A program owns some outputs of all tokens and one of PARTS ranges of the input features, and has shared
memory for all of their bytes: copies of weights start before the tokens are rounded, copies of tokens as soon
as they are. A packed byte, read in the order of the matrix unit's left operand, becomes the operands of two
products: its low half meets one range of the tokens, its high half another. Weights are read before the
kernel in front has ended: no kernel that lets its follower start early may write them.

M tokens, N output features, W bytes of a weight row.
"""

from typing import NamedTuple

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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from model.kernels.hopper import available
from model.kernels.int8_linear.rows import MULTIPROCESSORS, counters, quantize

CHUNK = gl.constexpr(128)  # bytes of a row in one copy
SHARED = 230_000  # bytes of shared memory for copies
MOST = 64  # tokens
# Arrivals at each tile, which only grow, of a device and a number of parts (``rows.counters``).
_COUNTERS: dict[tuple[torch.device, int], torch.Tensor] = {}


class Cut(NamedTuple):
    """Outputs of a program, parts of the sum (a power of two), warps."""

    block_n: int
    parts: int
    warps: int


CUTS = Cut(64, 1, 4), Cut(128, 2, 8), Cut(128, 4, 8)


def cut(x_MK, weight) -> Cut | None:
    """How the product is cut; None if this kernel does not take it."""
    (M, K), (N, W) = x_MK.shape, weight.shape
    if not available(x_MK) or not 1 < M <= MOST or K != 2 * W:
        return None
    for each in CUTS:
        whole = N % each.block_n == 0 and W % (CHUNK.value * each.parts) == 0
        fits = W // each.parts * (each.block_n + 2 * _rows(M)) <= SHARED
        if whole and fits and N // each.block_n * each.parts <= MULTIPROCESSORS:
            # Up to 16 tokens the plain kernel is quicker than one part.
            return None if each.parts == 1 and M <= 16 else each
    return None


def int8_linear(x_MK, weight, scale_N1, how: Cut):
    """As the reference, for packed weights."""
    (M, _), (N, W), device = x_MK.shape, weight.shape, x_MK.device
    token, token_scale = quantize(x_MK, True)
    out = torch.empty(M, N, dtype=x_MK.dtype, device=device)
    partial = torch.empty(how.parts, M, N, dtype=torch.int32, device=device) if how.parts > 1 else None
    counter = counters(_COUNTERS, (device, how.parts), MULTIPROCESSORS, device)
    weight_tiles, token_tiles = _tiles(weight.view(torch.int8), how.block_n), _tiles(token, _rows(M))
    _product_kernel[(N // how.block_n * how.parts,)](
        weight_tiles, token_tiles, token_scale, scale_N1, out, partial, counter, M, N=N, W=W,
        PARTS=how.parts, BLOCK_N=how.block_n, BLOCK_M=_rows(M), num_warps=how.warps, launch_pdl=True,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _rows(M: int) -> int:
    return max(16, triton.next_power_of_2(M))


def _tiles(matrix, rows: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    return TensorDescriptor.from_tensor(matrix, [rows, CHUNK.value], layout)


@gluon.jit(do_not_specialize=["rows"])
def _product_kernel(
    weight, token, token_scale, weight_scale, out, partial, counter, rows, N: gl.constexpr, W: gl.constexpr,
    PARTS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_M: gl.constexpr,
):  # fmt: skip
    STEPS: gl.constexpr = W // (CHUNK * PARTS)
    swizzled: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_M, 32])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    tile = gl.program_id(0) // PARTS
    part = gl.program_id(0) % PARTS
    # An allocation for each tile and barrier: between uses of views of one, the compiler has all warps meet.
    weight_s = ()
    token_s = ()
    full = ()
    for _ in gl.static_range(STEPS):
        weight_s += (gl.allocate_shared_memory(gl.int8, [BLOCK_N, CHUNK], swizzled),)
    for _ in gl.static_range(2 * STEPS):
        token_s += (gl.allocate_shared_memory(gl.int8, [BLOCK_M, CHUNK], swizzled),)
    for i in gl.static_range(3 * STEPS):
        full += (gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),)
        mbarrier.init(full[i], count=1)
    fence_async_shared()
    gl.thread_barrier()
    for i in gl.static_range(3 * STEPS):
        mbarrier.expect(full[i], (BLOCK_N if i < STEPS else BLOCK_M) * CHUNK)
    for i in gl.static_range(STEPS):
        place = [tile * BLOCK_N, _column(part, tile, i, STEPS)]
        tma.async_copy_global_to_shared(weight, place, full[i], weight_s[i])
    gdc_launch_dependents()
    gdc_wait()
    for i in gl.static_range(2 * STEPS):
        place = [0, _column(part, tile, i // 2, STEPS) + i % 2 * W]
        tma.async_copy_global_to_shared(token, place, full[STEPS + i], token_s[i])
    total = gl.full([BLOCK_N, BLOCK_M], 0, gl.int32, layout=layout)
    for i in gl.static_range(STEPS):
        mbarrier.wait(full[i], 0)
        packed = weight_s[i].load(operand)
        low = _low(packed)
        high = _high(packed)
        mbarrier.wait(full[STEPS + 2 * i], 0)
        mbarrier.wait(full[STEPS + 2 * i + 1], 0)
        if i > 1:
            total = warpgroup_mma_wait(2, deps=[total])  # more operands would fill the registers
        total = warpgroup_mma(low, token_s[2 * i].permute((1, 0)), total, is_async=True)
        total = warpgroup_mma(high, token_s[2 * i + 1].permute((1, 0)), total, is_async=True)
    total = warpgroup_mma_wait(0, deps=[total])
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [128 // BLOCK_N, BLOCK_N // 4], [gl.num_warps(), 1], [1, 0])
    total = gl.convert_layout(total.permute((1, 0)), flat)
    m = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, flat))
    n = tile * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, flat))
    if PARTS == 1:
        _store(total, m, n, rows, token_scale, weight_scale, out, N)
    else:
        place = partial + gl.expand_dims(m * N, 1) + gl.expand_dims(n, 0)
        gl.store(place + part * (rows * N), total, mask=gl.expand_dims(m < rows, 1))
        gl.thread_barrier()  # all of this program's stores are before its arrival
        _wait_for_all(counter + tile, PARTS)
        SHARE: gl.constexpr = BLOCK_M // PARTS  # every part sums that many tokens
        m = part * SHARE + gl.arange(0, SHARE, layout=gl.SliceLayout(1, flat))
        place = partial + gl.expand_dims(m * N, 1) + gl.expand_dims(n, 0)
        total = gl.full([SHARE, BLOCK_N], 0, gl.int32, layout=flat)
        for each in gl.static_range(PARTS):
            beside = place + each * (rows * N)
            total += gl.load(beside, mask=gl.expand_dims(m < rows, 1), other=0, cache_modifier=".cg")
        _store(total, m, n, rows, token_scale, weight_scale, out, N)


@gluon.jit
def _column(part, tile, step: gl.constexpr, STEPS: gl.constexpr):
    """First byte of a step. Tiles begin at different steps, or all would ask for the same tokens at once."""
    return part * (STEPS * CHUNK) + (tile + step) % STEPS * CHUNK


@gluon.jit
def _wait_for_all(counter, PARTS: gl.constexpr):
    """Arrive, and wait for the other parts of the tile. They stand beside each other in the grid, so they run
    together; the counter grows by PARTS with every product and may overflow, so only differences count.
    """
    arrived = gl.atomic_add(counter, 1, sem="acq_rel") + 1
    goal = ((arrived - 1) & (-PARTS)) + PARTS
    while arrived - goal < 0:
        arrived = gl.atomic_add(counter, 0, sem="acquire")


@gluon.jit
def _store(total, m, n, rows, token_scale, weight_scale, out, N: gl.constexpr):
    there = m < rows
    value = (total >> 4).to(gl.float32) * gl.expand_dims(gl.load(token_scale + m, mask=there, other=0.0), 1)
    value *= gl.expand_dims(gl.load(weight_scale + n), 0)
    place = out + gl.expand_dims(m * N, 1) + gl.expand_dims(n, 0)
    gl.store(place, value.to(out.dtype.element_ty), mask=gl.expand_dims(there, 1))


@gluon.jit
def _low(packed):
    """16 times the value in the low four bits of each byte, four bytes at once."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 t; shl.b32 t, $1, 4; and.b32 $0, t, 0xF0F0F0F0; }", "=r,r", [packed], dtype=gl.int8,
        is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def _high(packed):
    """16 times the value in the high four bits."""
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, 0xF0F0F0F0;", "=r,r", [packed], dtype=gl.int8, is_pure=True, pack=4
    )
