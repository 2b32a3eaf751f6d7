"""Lightning indexer with exact top-k on CUDA: the contract is ``reference.indexer_topk``.

Chunk by chunk of queries: ``scores.py`` multiplies a tile of keys with the heads of a few queries, applies
ReLU and head weights in registers, and stores one float32 per (query, key) into a bounded workspace;
``select.py`` picks the best of each row, and orders them where that is asked for. Order is total (score, then
lower key index), thus the result does not depend on tiles, splits or timing.

B batch, T queries, S keys, I indexer heads, J indexer dim, K top-k.
"""

from typing import NamedTuple

import torch
import triton

from model.kernels.indexer_topk.scores import score_chunk
from model.kernels.indexer_topk.select import (
    bound_kernel,
    compact_kernel,
    compact_ties_kernel,
    pick_kernel,
    select_kernel,
    sort_kernel,
)

# Bytes of scores held at once.
WORKSPACE = 1 << 29
# Queries of a chunk at most; with lists each needs another 160 KiB of scratch at top-2048.
CHUNK, DIRECT_CHUNK = 2048, 16_384
# Up to this many keys a row is selected from as it is, without classes and lists.
DIRECT = 8192
# Parts of a row that are filtered side by side, each by one warp, BLOCK scores at a time.
SEGMENTS = 4
BLOCK = 128
FP8 = torch.float8_e4m3fn


class Inputs(NamedTuple):
    """Of a call, contiguous."""

    q: torch.Tensor  # (B, T, I, J)
    k: torch.Tensor  # (B, S, J), or a pool (rows, J)
    row: torch.Tensor | None  # (B, S), the keys' rows in a pool
    scale: torch.Tensor | None  # float32, of each key
    weight: torch.Tensor  # float32 (B, T, I)
    start: torch.Tensor  # int32 (B, T)
    stop: torch.Tensor


class Plan(NamedTuple):
    """Sizes that hold for all chunks of a call."""

    direct: bool  # whether rows are selected from without classes
    groups: int  # stride classes of keys
    width: int  # scores of a row: whole blocks, so that it is read without masks
    tile: int  # keys
    trivial: int  # rows with at most so many visible keys need no scores


class Chunk(NamedTuple):
    b: int
    batches: int
    t: int
    queries: int


def quantize_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x8, scale): float8 e4m3 values and a float32 scale for each row (last dimension): ``x8 * scale``."""
    scale = x.float().abs().amax(-1).clamp(min=1e-12) / 448.0
    return (x.float() / scale.unsqueeze(-1)).to(FP8), scale


@torch.no_grad()
def indexer_topk(
    q_BTIJ: torch.Tensor,
    k_BSJ: torch.Tensor,
    weight_BTI: torch.Tensor,
    start_BT: torch.Tensor,
    stop_BT: torch.Tensor,
    top_k: int,
    *,
    k_scale_BS: torch.Tensor | None = None,
    order: str = "score",
    row_BS: torch.Tensor | None = None,
    block_keys: int = 64,
) -> torch.Tensor:
    """As ``reference.indexer_topk``; scores are summed in float32 from exact products of the inputs.

    Args:
        k_scale_BS: float32 scale of each key, for float8 keys (``quantize_fp8``); of each row of the pool,
            where keys are one. The scales of float8 queries belong into ``weight_BTI``.
        order: as in the reference; "any" is "index", which needs no sort.
        block_keys: keys of a tile, 64 or 128; the result does not depend on it.

    Raises:
        ValueError: head counts that are not a power of two of at least 2, or top_k above 8192.
    """
    B, T, I, J = q_BTIJ.shape
    if I < 2 or I & (I - 1) or J & (J - 1) or J < 16:
        raise ValueError(f"the indexer kernel needs powers of two for heads and dim, got {I} heads of {J}")
    if top_k > 8192 or order not in ("score", "index", "any"):
        raise ValueError(f"top_k {top_k} must be at most 8192, order {order!r} 'score', 'index' or 'any'")
    S = k_BSJ.shape[1] if row_BS is None else row_BS.shape[1]
    inputs = Inputs(
        q_BTIJ.contiguous(), k_BSJ.contiguous(), None if row_BS is None else row_BS.contiguous(),
        None if k_scale_BS is None else k_scale_BS.contiguous(), weight_BTI.float().contiguous(),
        start_BT.int().contiguous(), stop_BT.int().contiguous(),
    )  # fmt: skip
    index_BTK = torch.empty(B, T, top_k, dtype=torch.int32, device=q_BTIJ.device)
    by_score = order == "score"
    plan = _plan(S, top_k, block_keys, by_score)
    chunks = _chunks(B, T, plan, max(4, 128 // I))
    buffers = _buffers(chunks[0], plan, top_k, by_score, index_BTK.device) if chunks else ()
    for chunk in chunks:
        score, group_max, *lists = buffers
        score_chunk(inputs, plan, chunk, score, group_max)
        _select(inputs, plan, chunk, score, group_max, lists, index_BTK, by_score)
    return index_BTK


def _plan(S: int, top_k: int, tile: int, by_score: bool) -> Plan:
    size = max(tile, triton.next_power_of_2(max(S, 1)))
    direct = size <= DIRECT
    groups = size if direct else min(size, max(tile, 2 * triton.next_power_of_2(top_k)))
    width = size if direct else triton.cdiv(S, BLOCK) * BLOCK
    return Plan(direct, groups, width, tile, -1 if by_score else top_k)


def _chunks(B: int, T: int, plan: Plan, tile: int) -> list[Chunk]:
    rows = max(1, min(DIRECT_CHUNK if plan.direct else CHUNK, WORKSPACE // (4 * plan.width)))
    batches = max(1, min(B, rows // max(T, 1)))
    queries = min(T, max(tile, rows // tile * tile))
    return [
        Chunk(b, min(batches, B - b), t, min(queries, T - t))
        for b in range(0, B, batches)
        for t in range(0, T, max(queries, 1))
    ]


def _buffers(chunk: Chunk, plan: Plan, top_k: int, by_score: bool, device) -> tuple[torch.Tensor, ...]:
    """Scores, maxima, lists, what was picked, bounds, and lengths of the lists, for the rows of a chunk."""
    rows, groups = chunk.batches * chunk.queries, 0 if plan.direct else plan.groups
    picked = triton.next_power_of_2(top_k) if by_score else 0
    return (
        torch.empty(rows, plan.width, dtype=torch.float32, device=device),
        torch.empty(rows, groups, dtype=torch.float32, device=device),
        torch.empty(rows, SEGMENTS, groups and groups + BLOCK, dtype=torch.int64, device=device),
        torch.empty(rows, picked, dtype=torch.int64, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
        torch.empty(rows, SEGMENTS, dtype=torch.int32, device=device),
    )


def _select(
    inputs: Inputs, plan: Plan, chunk: Chunk, score, group_max, lists, index_BTK, by_score: bool
) -> None:
    candidate, picked, bound, length = lists
    K, K2 = index_BTK.shape[-1], triton.next_power_of_2(index_BTK.shape[-1])
    grid, part = (chunk.queries, chunk.batches), (chunk.b, chunk.t, chunk.queries, index_BTK.shape[1])
    edges = (inputs.start, inputs.stop, *part)
    # Registers are limited so that several programs share a multiprocessor: they wait for their barriers.
    if plan.direct:
        warps = max(1, min(8, plan.width // 512))
        select_kernel[grid](
            score, picked, index_BTK, *edges, K, plan.width, plan.trivial,
            SIZE=plan.width, K2=K2, SORTED=not by_score, num_warps=warps, maxnreg=min(255, 1024 // warps),
        )  # fmt: skip
    else:
        sizes = dict(GROUPS=plan.groups, SEGMENTS=SEGMENTS)
        bound_kernel[grid](
            group_max, bound, *edges, K, GROUPS=plan.groups, num_warps=max(1, min(4, plan.groups // 1024))
        )
        rows = (score, bound, candidate, length, *edges, plan.width)
        compact_kernel[(chunk.queries * SEGMENTS, chunk.batches)](
            *rows, plan.trivial, **sizes, BLOCK=BLOCK, num_warps=1
        )
        compact_ties_kernel[grid](
            *rows, K, **sizes, BLOCK=BLOCK, STEP=min(512, max(plan.groups, 128)), num_warps=4
        )
        pick_kernel[grid](
            candidate, length, bound, picked, index_BTK, *edges, K, plan.trivial,
            **sizes, BLOCK=BLOCK, K2=K2, SORTED=not by_score,
            num_warps=max(1, min(8, plan.groups // 512)), maxnreg=80,
        )  # fmt: skip
    if by_score:
        sort_kernel[grid](picked, index_BTK, *part, K, K2=K2, num_warps=16 if K2 >= 512 else 1)
