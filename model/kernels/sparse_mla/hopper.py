"""What sparse MLA's kernels for Hopper share. They are written in Gluon, Triton's lower-level dialect, at
GLM-5's head sizes.

Warpgroups have roles, which ``hopper_forward.py`` and ``hopper_backward.py`` describe. Plain Triton lets
every warpgroup do a part of everything, so that products, softmax and the gather wait for one another; here
they overlap, a score product reads its operands from shared memory once, and a row's maximum is found inside
a warp. A product starts with the part of the rows that is there, and makes room for others.

One thread arrives at a barrier for its warpgroup; all that the others did before is done by then, as Triton
3.6 has the warpgroup meet before every ``mbarrier.arrive``.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from model.kernels.hopper import available

# Heads of one program, latent, a quarter of it, rotated dims.
HEADS, LATENT, QUARTER, ROTATED = gl.constexpr(64), gl.constexpr(512), gl.constexpr(128), gl.constexpr(64)
WARPS = 4  # of each of the three warpgroups
# Programs that fill the card, one a multiprocessor.
FILL = 132


def fits(q: torch.Tensor, latent: int) -> bool:
    """Whether the kernels take these queries (B, T, N, X)."""
    return (
        available(q)
        and q.shape[-2] % HEADS.value == 0
        and latent == LATENT.value
        and q.shape[-1] == LATENT.value + ROTATED.value
    )


def weight_tiles(weights: torch.Tensor) -> TensorDescriptor:
    """Rows of 16-bit weights (..., keys), one a head of a query, in tiles of HEADS rows and as many keys."""
    shared = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor.from_tensor(
        weights.view(-1, weights.shape[-1]), [HEADS.value, HEADS.value], shared
    )


@gluon.jit
def selected_rows(index_row, k0, last, TILE: gl.constexpr):
    """Selected rows of a tile, in the layouts of ``gather`` and of ``gather_rotated``. What is not there
    copies row 0, which has to be finite: its weight is 0.
    """
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    lane = k0 + gl.arange(0, TILE, layout=gl.SliceLayout(1, wide))
    rows = gl.maximum(gl.load(index_row + lane, mask=lane < last, other=0), 0)
    lane = k0 + gl.arange(0, TILE, layout=gl.SliceLayout(1, narrow))
    return rows, gl.maximum(gl.load(index_row + lane, mask=lane < last, other=0), 0)


@gluon.jit
def gather(kv, base, rows, quarter: gl.constexpr, latents):
    """Starts copying a quarter of the latents of ``rows``."""
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = (base + rows).to(gl.int64) * (LATENT + ROTATED)
    c = quarter * QUARTER + gl.arange(0, QUARTER, layout=gl.SliceLayout(0, wide))
    async_copy.async_copy_global_to_shared(latents, kv + gl.expand_dims(row, 1) + gl.expand_dims(c, 0))


@gluon.jit
def gather_rotated(kv, base, rows_narrow, rotated):
    """Starts copying the rotated parts of the rows."""
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = (base + rows_narrow).to(gl.int64) * (LATENT + ROTATED) + LATENT
    r = gl.arange(0, ROTATED, layout=gl.SliceLayout(0, narrow))
    async_copy.async_copy_global_to_shared(rotated, kv + gl.expand_dims(row, 1) + gl.expand_dims(r, 0))


@gluon.jit
def signal(full):
    """Has ``full`` count this warpgroup once all that it copies so far has arrived."""
    async_copy.mbarrier_arrive(full, increment_count=False)


@gluon.jit
def prefetch(kv, base, index_row, k0, last, TILE: gl.constexpr):
    """Asks for the selected rows of a tile from memory into the cache that all share, half a row a thread."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    thread = gl.arange(0, 2 * TILE, layout=layout)
    key = k0 + thread // 2
    rows = gl.maximum(gl.load(index_row + key, mask=key < last, other=0), 0)
    half: gl.constexpr = (LATENT + ROTATED) // 2
    place = kv + (base + rows).to(gl.int64) * (2 * half) + thread % 2 * half
    gl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 576; mov.u32 $0, 0;", "=r,l", [place], dtype=gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def load_half(source, stride: gl.constexpr, quarter0, quarter1):
    """Starts copying half of the latent columns of HEADS rows, ``stride`` elements apart, into two tiles."""
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, wide)), 1) * stride
    c = gl.expand_dims(gl.arange(0, QUARTER, layout=gl.SliceLayout(0, wide)), 0)
    async_copy.async_copy_global_to_shared(quarter0, source + head + c)
    async_copy.async_copy_global_to_shared(quarter1, source + head + c + QUARTER)


@gluon.jit
def load_rotated(source, rotated):
    """Starts copying the rotated columns of HEADS rows of queries."""
    X: gl.constexpr = LATENT + ROTATED
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, narrow)), 1) * X
    r = gl.expand_dims(gl.arange(0, ROTATED, layout=gl.SliceLayout(0, narrow)), 0)
    async_copy.async_copy_global_to_shared(rotated, source + LATENT + head + r)
