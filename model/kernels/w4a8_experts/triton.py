"""Routed experts in integers on CUDA: the contract is ``reference.w4a8_experts``, bit for bit.

Five passes behind the routing: round the tokens; gate and up (``int8_linear``'s product, a group an expert);
scales, SwiGLU and rounding of a row; down; scales and the weighted sum over a token's choices. What passes
between them is integers, so every scale is applied in one place, and nothing waits for the host.

M tokens, D hidden, E experts, F ffn width, G = 2F, K experts per token, A = M K rows in expert order, T tiles
of rows.
"""

import torch
import triton
import triton.language as tl

from model.kernels.int8_linear.product import Groups, Tiling, sums
from model.kernels.int8_linear.rows import ROUND, begin, divide, launch, quantize, quantize_row, row_block
from model.kernels.w4a8_experts import reference

LOG2_E = tl.constexpr(reference.LOG2_E)
C0, C1, C2, C3, C4, C5, C6 = (tl.constexpr(c) for c in reference.EXP2)
COUNTED = 4096  # up to this many choices, counting the smaller ones is a quicker sort than sorting


def w4a8_experts(
    x_MD,
    index_MK,
    weight_MK,
    gate_up,
    gate_up_scale_EG1,
    down,
    down_scale_ED1,
    tilings: tuple[Tiling, Tiling] | None = None,
):
    """As the reference. ``tilings`` of both products."""
    M, K = index_MK.shape
    E, G, D = gate_up.shape[0], gate_up.shape[1], down.shape[1]
    if M == 0:
        return torch.empty_like(x_MD)
    first, second = tilings or experts_tilings(M * K, E)
    groups, place = route(index_MK, E, first.block_m)
    if second.block_m != first.block_m:
        second_groups = groups._replace(copies=0, **_tiles(groups.stop_E, M * K, second.block_m))
    else:
        second_groups = groups._replace(copies=0)
    token, token_scale = quantize(x_MD.contiguous(), first.early)
    total = sums(token, gate_up, M * K, groups, first)
    inner = torch.empty(M * K, G // 2, dtype=torch.int8, device=x_MD.device)
    inner_scale = torch.empty(M * K, dtype=torch.float32, device=x_MD.device)
    _swiglu_kernel[(M * K,)](
        total, groups.source_A, index_MK, token_scale, gate_up_scale_EG1, inner, inner_scale, M * K,
        F=G // 2, K=K, SPLIT=first.split, SHIFT=_shift(gate_up), **row_block(G // 2, first.early),
    )  # fmt: skip
    total = sums(inner, down, M * K, second_groups, second)
    out = torch.empty(M, D, dtype=x_MD.dtype, device=x_MD.device)
    block = min(1024, triton.next_power_of_2(D))
    _combine_kernel[(M, triton.cdiv(D, block))](
        total, place, index_MK, inner_scale, down_scale_ED1, weight_MK.float().contiguous(), out, M * K,
        D=D, K=K, SPLIT=second.split, SHIFT=_shift(down), BLOCK=block, num_warps=4, **launch(second.early),
    )  # fmt: skip
    return out


def experts_tilings(choices: int, experts: int) -> tuple[Tiling, Tiling]:
    """For gate and up, and for down; measured at GLM-5's shapes on an H200 (benchmarks/w4a8.py)."""
    expected = choices / min(experts, choices)  # rows of an expert that has any
    block_m = min(128, max(16, triton.next_power_of_2(round(expected))))
    if block_m == 16:
        tiling = Tiling(128, 16, 256, 1, 8, 3)
    elif block_m < 128:
        tiling = Tiling(128, block_m, 128, 1, 8, 4)
    else:
        tiling = Tiling(256, 128, 64, 1, 8, 3)
    return tiling, tiling


def route(index_MK, experts: int, block_m: int):
    """The rows in expert order, cut into tiles, and int32 ``place`` (A,): where each choice's row is."""
    A, device = index_MK.numel(), index_MK.device
    choice = index_MK.reshape(-1)
    if A <= COUNTED:
        order, place = (torch.empty(A, dtype=torch.int32, device=device) for _ in range(2))
        stop = torch.empty(experts, dtype=torch.int32, device=device)
        block = 16
        _place_kernel[(triton.cdiv(A, block) + triton.cdiv(experts, block),)](
            choice,
            order,
            place,
            stop,
            A,
            experts,
            BLOCK=block,
            CHUNK=min(256, max(16, triton.next_power_of_2(A))),
        )
    else:
        expert, order = choice.to(torch.int32).sort(stable=True)
        bounds = torch.arange(experts, device=device, dtype=torch.int32)
        stop = torch.searchsorted(expert, bounds, right=True).to(torch.int32)
        order = order.to(torch.int32)
        place = torch.empty_like(order)
        place[order.long()] = torch.arange(A, device=device, dtype=torch.int32)
    return Groups(order, index_MK.shape[1], stop_E=stop, **_tiles(stop, A, block_m)), place


def _tiles(stop_E, rows: int, block_m: int) -> dict:
    """Tiles of rows of one expert each; how many there are is known on the device alone, their most here."""
    E = len(stop_E)
    T = min(rows, E) + rows // block_m
    expert, first = (torch.empty(T, dtype=torch.int32, device=stop_E.device) for _ in range(2))
    _tile_kernel[(1,)](
        stop_E,
        expert,
        first,
        E,
        T,
        BLOCK_M=block_m,
        BLOCK_E=triton.next_power_of_2(E),
        BLOCK_T=triton.next_power_of_2(T),
    )
    return dict(expert_T=expert, first_T=first)


def _shift(stored) -> int:
    """Sums of 4-bit weights are 16 times too large."""
    return 4 if stored.dtype == torch.uint8 else 0


@triton.jit
def _place_kernel(choice, order, place, stop, A, E, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """A choice's place is the number of choices of smaller experts, or of its own and earlier."""
    program = tl.program_id(0)
    first = (A + BLOCK - 1) // BLOCK
    count = tl.zeros([BLOCK], tl.int32)
    own = tl.arange(0, BLOCK)
    if program < first:
        a = program * BLOCK + own
        expert = tl.load(choice + a, mask=a < A, other=0).to(tl.int32)
        for b0 in range(0, A, CHUNK):
            b = b0 + tl.arange(0, CHUNK)
            other = tl.load(choice + b, mask=b < A, other=2147483647).to(tl.int32)
            smaller = other[None, :] < expert[:, None]
            earlier = (other[None, :] == expert[:, None]) & (b[None, :] < a[:, None])
            count += tl.sum((smaller | earlier).to(tl.int32), 1)
        tl.store(place + a, count, mask=a < A)
        tl.store(order + count, a, mask=a < A)
    else:
        e = (program - first) * BLOCK + own
        for b0 in range(0, A, CHUNK):
            b = b0 + tl.arange(0, CHUNK)
            other = tl.load(choice + b, mask=b < A, other=2147483647).to(tl.int32)
            count += tl.sum((other[None, :] <= e[:, None]).to(tl.int32), 1)
        tl.store(stop + e, count, mask=e < E)


@triton.jit
def _tile_kernel(
    stop, tile_expert, tile_first, E, T, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr
):
    t = tl.arange(0, BLOCK_T)
    tl.store(tile_expert + t, -1, mask=t < T)
    tl.debug_barrier()
    e = tl.arange(0, BLOCK_E)
    end = tl.load(stop + e, mask=e < E, other=0)
    begin = tl.load(stop + e - 1, mask=(e > 0) & (e < E), other=0)
    tiles = tl.where(e < E, (end - begin + BLOCK_M - 1) // BLOCK_M, 0)
    at = tl.cumsum(tiles, 0) - tiles
    for tile in range(tl.max(tiles)):
        tl.store(tile_expert + at + tile, e, mask=tile < tiles)
        tl.store(tile_first + at + tile, begin + tile * BLOCK_M, mask=tile < tiles)


@triton.jit(do_not_specialize=["A"])
def _swiglu_kernel(
    total, source, index, token_scale, weight_scale, inner, inner_scale, A, F: tl.constexpr, K: tl.constexpr,
    SPLIT: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
    COMPILED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    begin(EARLY)
    choice = tl.load(source + row)
    expert = tl.load(index + choice).to(tl.int64)
    scale = tl.load(token_scale + choice // K)
    f = tl.arange(0, BLOCK)
    gate = _scaled(
        total + row * 2 * F, weight_scale + expert * 2 * F, scale, f, F, A.to(tl.int64) * 2 * F, SPLIT, SHIFT
    )
    up = _scaled(
        total + row * 2 * F + F,
        weight_scale + expert * 2 * F + F,
        scale,
        f,
        F,
        A.to(tl.int64) * 2 * F,
        SPLIT,
        SHIFT,
    )
    power = tl.minimum(tl.maximum(gate * -LOG2_E, -126.0), 126.0)
    whole = (power + ROUND) - ROUND
    part = power - whole
    exponential = ((((((C0 * part + C1) * part + C2) * part + C3) * part + C4) * part) + C5) * part + C6
    two_power = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    value = divide(gate, exponential * two_power + 1.0, COMPILED) * up
    quantize_row(value, inner + row * F, inner_scale + row, f, F, COMPILED)


@triton.jit(do_not_specialize=["A"])
def _combine_kernel(
    total, place, index, inner_scale, weight_scale, factor, out, A, D: tl.constexpr, K: tl.constexpr,
    SPLIT: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
    COMPILED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    result = tl.zeros([BLOCK], tl.float32)
    begin(EARLY)
    for k in tl.static_range(K):
        row = tl.load(place + token * K + k).to(tl.int64)
        expert = tl.load(index + token * K + k).to(tl.int64)
        scale = tl.load(inner_scale + row)
        value = _scaled(
            total + row * D, weight_scale + expert * D, scale, d, D, A.to(tl.int64) * D, SPLIT, SHIFT
        )
        result += tl.load(factor + token * K + k) * value
    tl.store(out + token * D + d, result.to(out.dtype.element_ty), mask=d < D)


@triton.jit
def _scaled(
    total, weight_scale, scale, n, N: tl.constexpr, part_size, SPLIT: tl.constexpr, SHIFT: tl.constexpr
):
    """The sum over all parts, times the row's and the columns' scales; 0 behind the last column."""
    value = tl.zeros(n.shape, tl.int32)
    for part in tl.static_range(SPLIT):
        value += tl.load(total + part * part_size + n, mask=n < N, other=0)
    return (value >> SHIFT).to(tl.float32) * scale * tl.load(weight_scale + n, mask=n < N, other=0.0)
