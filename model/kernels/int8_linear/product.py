"""Integer products on CUDA: int8 tokens times int8 or packed 4-bit weights of one matrix, or of experts.

The weights are the matrix unit's left operand, so that 4-bit values are widened in registers, by one shift
and one mask for four of them: a value becomes 16 times itself, and the sums lose the factor again at the end.
A small product is cut along the input features too (SPLIT), or it would not fill the card; sums of integers
do not depend on how they were cut.

M tokens, A rows, E matrices, N output features, K input features, W bytes of a weight row, T tiles of rows.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from model.kernels.int8_linear.rows import begin, counters, launch

# Programs that are done with a tile of a cut product, all 0 between two products (``rows.counters``).
_COUNTERS: dict[torch.device, torch.Tensor] = {}


class Tiling(NamedTuple):
    """How a product is cut: output features, rows and bytes of a weight row in a tile; parts of the sum."""

    block_n: int
    block_m: int
    block_k: int
    split: int = 1
    warps: int = 4
    stages: int = 4
    early: bool = True  # start, and fetch weights into the cache, while the kernel before still runs


class Groups(NamedTuple):
    """Which rows of a product belong to which matrix."""

    source_A: torch.Tensor  # int32, the token that is row a, times ``copies``
    copies: int
    expert_T: torch.Tensor  # int32, matrix of each tile of rows; -1 behind the last
    first_T: torch.Tensor  # int32, a tile's first row
    stop_E: torch.Tensor  # int32, the end of each matrix's rows


def product(token_MK, token_scale, weight_ENW, scale_N1, dtype, tiling: Tiling):
    """``(token @ weight[0].t()) * token_scale * scale.t()`` (M, N) in ``dtype``."""
    M, K = token_MK.shape
    N = weight_ENW.shape[1]
    out = torch.empty(M, N, dtype=dtype, device=token_MK.device)
    if M:
        tiles = triton.cdiv(M, tiling.block_m)
        partial, counter = _workspace(tiling, tiles, M, N, token_MK.device)
        _launch(token_MK, weight_ENW, out, tiling, tiles, M, partial, counter, token_scale, scale_N1)
    return out


def sums(token_MK, weight_ENW, rows: int, groups: Groups, tiling: Tiling):
    """int32 (SPLIT, A, N): each row's products with its own matrix, 16 times too large for 4-bit weights."""
    out = torch.empty(tiling.split, rows, weight_ENW.shape[1], dtype=torch.int32, device=token_MK.device)
    _launch(token_MK, weight_ENW, out, tiling, len(groups.expert_T), rows, groups=groups)
    return out


def _workspace(tiling: Tiling, tiles: int, rows: int, N: int, device: torch.device):
    if tiling.split == 1:
        return None, None
    needed = tiles * triton.cdiv(N, tiling.block_n)
    partial = torch.empty(tiling.split, rows, N, dtype=torch.int32, device=device)
    return partial, counters(_COUNTERS, device, max(4096, needed), device)


def _launch(
    token, weight, out, tiling, tiles, rows, partial=None, counter=None, token_scale=None, scale=None,
    groups=None,
):  # fmt: skip
    N, W = weight.shape[1:]
    grid = (tiles * triton.cdiv(N, tiling.block_n) * tiling.split,)
    source, copies, *tables = groups or (None, 0, None, None, None)
    _product_kernel[grid](
        token, weight.view(torch.int8), out, partial, counter, token_scale, scale, source, *tables, rows,
        N=N, K=token.shape[1], W=W, COPIES=copies, GROUPED=groups is not None, SCALED=scale is not None,
        SPLIT=tiling.split, BLOCK_N=tiling.block_n, BLOCK_M=tiling.block_m, BLOCK_K=tiling.block_k,
        num_warps=tiling.warps, num_stages=tiling.stages, **launch(tiling.early),
    )  # fmt: skip


@triton.constexpr_function
def power_of_two(count):
    """The least power of two that is not below."""
    return 1 << (count - 1).bit_length()


@triton.jit(do_not_specialize=["rows"])
def _product_kernel(
    token, weight, out, partial, counter, token_scale, weight_scale, source, tile_expert, tile_first,
    expert_stop, rows, N: tl.constexpr, K: tl.constexpr, W: tl.constexpr, COPIES: tl.constexpr,
    GROUPED: tl.constexpr, SCALED: tl.constexpr, SPLIT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    PACKED: tl.constexpr = W < K
    N_TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    STEPS: tl.constexpr = (W + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)
    EVEN: tl.constexpr = W % (BLOCK_K * SPLIT) == 0
    tile_n = tl.program_id(0) % N_TILES
    split = tl.program_id(0) // N_TILES % SPLIT
    tile = tl.program_id(0) // (N_TILES * SPLIT)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = split * (STEPS * BLOCK_K) + tl.arange(0, BLOCK_K)
    if EARLY and not GROUPED and W % 128 == 0 and EVEN:
        tl.extra.cuda.gdc_launch_dependents()
        LINES: tl.constexpr = STEPS * BLOCK_K // 128
        line = tl.minimum(tl.arange(0, power_of_two(LINES)), LINES - 1)
        _prefetch(
            weight + tl.minimum(n, N - 1)[:, None] * W + split * (STEPS * BLOCK_K) + line[None, :] * 128
        )
    begin(EARLY)
    if GROUPED:
        expert = tl.load(tile_expert + tile).to(tl.int64)
        if expert < 0:
            return
        first = tl.load(tile_first + tile)
        stop = tl.load(expert_stop + expert)
    else:
        expert, first, stop = tile.to(tl.int64) * 0, tile * BLOCK_M, rows
    a = first + tl.arange(0, BLOCK_M)
    row = tl.minimum(a, stop - 1)  # rows behind the last are copies of it and are not stored
    if COPIES > 0:
        row = tl.load(source + row) // COPIES
    weight += expert * (N * W)
    at_weight = weight + tl.minimum(n, N - 1)[:, None] * W + k[None, :]
    # Of packed weights both halves of a token meet one tile of bytes.
    HALVES: tl.constexpr = 2 if PACKED else 1
    both = tl.arange(0, HALVES * BLOCK_K)
    inner = split * (STEPS * BLOCK_K) + both % BLOCK_K
    at_token = token + row.to(tl.int64)[None, :] * K + (inner + both // BLOCK_K * W)[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.int32)
    for step in range(STEPS):
        if EVEN:
            w = tl.load(at_weight)
            t = tl.load(at_token)
        else:
            w = tl.load(at_weight, mask=(k + step * BLOCK_K < W)[None, :], other=0)
            t = tl.load(at_token, mask=(inner + step * BLOCK_K < W)[:, None], other=0)
        if PACKED:
            pair = tl.join(_low(w, COMPILED), _high(w, COMPILED)).permute(0, 2, 1)
            total = tl.dot(pair.reshape(BLOCK_N, 2 * BLOCK_K), t, total, out_dtype=tl.int32)
        else:
            total = tl.dot(w, t, total, out_dtype=tl.int32)
        at_weight += BLOCK_K
        at_token += BLOCK_K
    place = a.to(tl.int64)[None, :] * N + n[:, None]
    stored = (n < N)[:, None] & (a < stop)[None, :]
    if not SCALED:
        tl.store(out + split * (rows.to(tl.int64) * N) + place, total, mask=stored)
    else:
        last = True
        if SPLIT > 1:
            tl.store(partial + split * (rows.to(tl.int64) * N) + place, total, mask=stored)
            tl.debug_barrier()  # all of this program's stores are before its count
            done = tl.atomic_add(counter + tile * N_TILES + tile_n, 1, sem="acq_rel")
            last = done == SPLIT - 1
        if last:
            if SPLIT > 1:
                total = tl.zeros([BLOCK_N, BLOCK_M], tl.int32)
                for part in tl.static_range(SPLIT):
                    at_part = partial + part * (rows.to(tl.int64) * N) + place
                    total += tl.load(at_part, mask=stored, other=0, cache_modifier=".cg")
                tl.store(counter + tile * N_TILES + tile_n, 0)
            if PACKED:
                total = total >> 4
            value = total.to(tl.float32) * tl.load(token_scale + a, mask=a < stop, other=0.0)[None, :]
            value *= tl.load(weight_scale + expert * N + n, mask=n < N, other=0.0)[:, None]
            tl.store(out + place, value.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _prefetch(pointers):
    """Bring the line behind each pointer into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _low(packed, COMPILED: tl.constexpr):
    """16 times the value in the low four bits of each byte, four bytes at once."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t; shl.b32 t, $1, 4; and.b32 $0, t, 0xF0F0F0F0; }", "=r,r", [packed],
            dtype=tl.int8, is_pure=True, pack=4,
        )  # fmt: skip
    return packed << 4


@triton.jit
def _high(packed, COMPILED: tl.constexpr):
    """16 times the value in the high four bits."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "and.b32 $0, $1, 0xF0F0F0F0;", "=r,r", [packed], dtype=tl.int8, is_pure=True, pack=4
        )
    return packed & -16
