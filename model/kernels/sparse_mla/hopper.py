"""What sparse MLA's kernels for Hopper share. They are written in Gluon, Triton's lower-level dialect, at
GLM-5's head sizes.

Warpgroups have roles: one multiplies queries with gathered rows and turns scores into weights, two hold half
of the result's columns each and add up weighted rows. Plain Triton lets every warpgroup do a part of
everything, so that products, softmax and the gather wait for one another; here they overlap, the score
product reads its operands from shared memory once, and a row's maximum is found inside a warp.

The two that use a tile's rows last also gather the tile that comes next in its place, each its own half.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy

from model.kernels.hopper import available

# Heads of one program, latent, half of it, rotated dims.
HEADS, LATENT, HALF, ROTATED = gl.constexpr(64), gl.constexpr(512), gl.constexpr(256), gl.constexpr(64)
LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
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


@gluon.jit
def selected_rows(index_row, k0, last, half: gl.constexpr, TILE: gl.constexpr):
    """Selected rows of a tile, in the layouts of the copies of ``gather``. What is not there copies row 0 and
    is masked later.
    """
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    lane = k0 + gl.arange(0, TILE, layout=gl.SliceLayout(1, wide))
    rows = gl.maximum(gl.load(index_row + lane, mask=lane < last, other=0), 0)
    lane_narrow = k0 + gl.arange(0, TILE, layout=gl.SliceLayout(1, narrow))
    if half == 1:
        rows_narrow = gl.maximum(gl.load(index_row + lane_narrow, mask=lane_narrow < last, other=0), 0)
    else:
        rows_narrow = lane_narrow
    return rows, rows_narrow


@gluon.jit
def gather(kv, base, rows, rows_narrow, half: gl.constexpr, latents, rotated, full):
    """Starts copying half of the latents of ``rows``, with the second half also the rotated parts. ``full``
    is signalled when they have arrived.
    """
    X: gl.constexpr = LATENT + ROTATED
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = (base + rows).to(gl.int64) * X
    c = half * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
    async_copy.async_copy_global_to_shared(latents, kv + gl.expand_dims(row, 1) + gl.expand_dims(c, 0))
    if half == 1:
        row = (base + rows_narrow).to(gl.int64) * X + LATENT
        r = gl.arange(0, ROTATED, layout=gl.SliceLayout(0, narrow))
        async_copy.async_copy_global_to_shared(rotated, kv + gl.expand_dims(row, 1) + gl.expand_dims(r, 0))
    async_copy.mbarrier_arrive(full, increment_count=False)


@gluon.jit
def load_heads(source, stride: gl.constexpr, half0, half1):
    """Starts copying the latent columns of HEADS rows, ``stride`` elements apart, into two tiles."""
    load_half(source, stride, half0)
    load_half(source + HALF, stride, half1)


@gluon.jit
def load_half(source, stride: gl.constexpr, half):
    """Starts copying half of the latent columns of HEADS rows, ``stride`` elements apart."""
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, wide)), 1) * stride
    c = gl.expand_dims(gl.arange(0, HALF, layout=gl.SliceLayout(0, wide)), 0)
    async_copy.async_copy_global_to_shared(half, source + head + c)


@gluon.jit
def load_rotated(source, rotated):
    """Starts copying the rotated columns of HEADS rows of queries."""
    X: gl.constexpr = LATENT + ROTATED
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, narrow)), 1) * X
    r = gl.expand_dims(gl.arange(0, ROTATED, layout=gl.SliceLayout(0, narrow)), 0)
    async_copy.async_copy_global_to_shared(rotated, source + LATENT + head + r)
