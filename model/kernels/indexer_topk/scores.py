"""Scores of keys for queries into a workspace, and the maxima of their stride classes, on CUDA.

B batch, T queries, S keys, I indexer heads, J indexer dim, K top-k.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from model.kernels.indexer_topk import hopper

if TYPE_CHECKING:
    from model.kernels.indexer_topk.triton import Chunk, Inputs, Plan

INTERPRET = triton.knobs.runtime.interpret
# Key tiles that one program should see, so that loading its queries is paid back.
TILES = 32


def score_chunk(
    inputs: "Inputs", plan: "Plan", chunk: "Chunk", score: torch.Tensor, group_max: torch.Tensor
) -> None:
    """Scores of a chunk's queries into ``score`` (rows, plan.width), float32, and with classes their maxima
    into ``group_max`` (rows, plan.groups). What a query does not see is not written.
    """
    q, k, row, scale, weight, start, stop = inputs
    B, T, I, J = q.shape
    S = k.shape[1] if row is None else row.shape[1]
    if row is None and hopper.fits(q, k, plan.tile):
        hopper.launch(inputs, plan, chunk, score, group_max)
        return
    residues = max(1, min(plan.groups // plan.tile, TILES * plan.groups // max(S, 1)))
    # The order of the sum over heads belongs to the queries of a tile: the head count alone fixes these.
    queries = max(4, 128 // I)
    grid = (
        triton.cdiv(chunk.queries, queries) * triton.cdiv(plan.groups // plan.tile, residues),
        chunk.batches,
    )
    _score_kernel[grid](
        q, k, start if row is None else row, weight if scale is None else scale, weight, start, stop, score,
        group_max, chunk.b, chunk.t, chunk.queries, T, S, plan.width, plan.trivial,
        I=I, J=J, GROUPS=plan.groups, BS=plan.tile, BQ=queries, RESIDUES=residues, MAXIMA=not plan.direct,
        PAGED=row is not None, SCALED=scale is not None, UPCAST=INTERPRET,
        num_warps=max(1, min(8, plan.tile // 16)), num_stages=4,
    )  # fmt: skip


@triton.jit
def _score_kernel(
    q, k, place_of, k_scale, weight, start, stop, score, group_max, b0, t0, Tc, T, S, width, trivial,
    I: tl.constexpr, J: tl.constexpr, GROUPS: tl.constexpr, BS: tl.constexpr, BQ: tl.constexpr,
    RESIDUES: tl.constexpr, MAXIMA: tl.constexpr, PAGED: tl.constexpr,
    SCALED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Scores of BQ queries for the keys ``residue * BS + [0, BS) + j * GROUPS`` of some residues, and their
    maxima over j.
    """
    query_blocks = tl.cdiv(Tc, BQ)
    block = tl.program_id(0) % query_blocks
    residue0 = tl.program_id(0) // query_blocks * RESIDUES
    b = b0 + tl.program_id(1)
    local_t = block * BQ + tl.arange(0, BQ)
    row_ok = local_t < Tc
    first = tl.load(start + b * T + t0 + local_t, mask=row_ok, other=2147483647)
    last = tl.load(stop + b * T + t0 + local_t, mask=row_ok, other=0)
    last = tl.where(last - first <= trivial, 0, last)
    row = tl.program_id(1) * Tc + local_t
    lo = tl.min(first)
    hi = tl.max(last)
    # The residues before ``full`` have one tile more than the others, whose last one lies behind ``hi``.
    j0 = lo // GROUPS
    more = tl.maximum(tl.cdiv(hi, GROUPS) - j0, 0)
    fewer = tl.maximum(more - 1, 0)
    here = tl.minimum(RESIDUES, GROUPS // BS - residue0)
    full = tl.cdiv(hi - (j0 + fewer) * GROUPS, BS) - residue0
    full = tl.where(more > 0, tl.minimum(tl.maximum(full, 0), here), 0)
    steps = full * more + (here - full) * fewer
    if steps == 0:  # classes without a visible key are not read
        return
    # Columns run (query high, head high, query low of 4, head low of 2): with the matrix unit's layout each
    # thread then owns all heads of its queries, and the sum over heads needs no exchange between threads.
    column = tl.arange(0, BQ * I)
    local_q = column // (4 * I) * 4 + column // 2 % 4
    head = column // 8 % (I // 2) * 2 + column % 2
    t_col = t0 + block * BQ + local_q
    q_ok = block * BQ + local_q < Tc
    dims = tl.arange(0, J)
    q_row = (b * T + t_col).to(tl.int64) * I + head
    q_tile = tl.load(q + q_row[:, None] * J + dims[None, :], mask=q_ok[:, None], other=0.0)
    # relu(x) = (x + |x|) / 2: an add with a free absolute value instead of a half-rate maximum.
    half_w = tl.load(weight + q_row, mask=q_ok, other=0.0) * 0.5
    best = tl.full([BS, BQ], float("-inf"), tl.float32)
    place = group_max + row[None, :].to(tl.int64) * GROUPS + tl.arange(0, BS)[:, None]
    if UPCAST:
        q_tile = q_tile.to(tl.float32)
    offset = residue0 * BS
    for step in range(steps):
        if RESIDUES > 1:
            rest = step - full * more
            tiles = tl.where(rest < 0, more, fewer)
            i = tl.where(rest < 0, step, rest)
            offset = (residue0 + i // tiles + tl.where(rest < 0, 0, full)) * BS
            j = i % tiles
            if MAXIMA:
                best = tl.where(j == 0, float("-inf"), best)
        else:
            j = step
        s = (j0 + j) * GROUPS + offset + tl.arange(0, BS)
        k_row = (b * S + s).to(tl.int64)
        if PAGED:
            k_row = tl.load(place_of + k_row, mask=s < S, other=0).to(tl.int64)
        k_tile = tl.load(k + k_row[:, None] * J + dims[None, :], mask=s[:, None] < S, other=0.0)
        if UPCAST:
            k_tile = k_tile.to(tl.float32)
        dot = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
        part = (dot + tl.abs(dot)) * half_w[None, :]
        part = tl.permute(tl.reshape(part, [BS, BQ // 4, I // 2, 4, 2]), (0, 1, 3, 2, 4))
        total = tl.sum(tl.reshape(part, [BS, BQ, I]), axis=2)
        if SCALED:
            scale_row = k_row if PAGED else b * S + s
            total *= tl.load(k_scale + scale_row, mask=s < S, other=0.0)[:, None]
        total = tl.where(total == 0.0, 0.0, total)  # -0.0 ties with 0.0
        seen = (s[:, None] >= first[None, :]) & (s[:, None] < last[None, :])
        if MAXIMA:
            best = tl.maximum(best, tl.where(seen, total, float("-inf")))
        tl.store(score + row[None, :].to(tl.int64) * width + s[:, None], total, mask=seen)
        if MAXIMA and RESIDUES > 1:
            rows_done = tl.where(j == tiles - 1, Tc, 0)
            tl.store(place + offset, best, mask=(local_t < rows_done)[None, :])
    if MAXIMA and RESIDUES == 1:
        tl.store(place + offset, best, mask=row_ok[None, :])
