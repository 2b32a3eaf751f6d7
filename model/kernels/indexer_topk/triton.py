"""Lightning indexer with exact top-k on CUDA: the contract is ``reference.indexer_topk``.

Two kernels over chunks of queries. ``_score_kernel`` multiplies a tile of keys with the heads of a few queries,
applies ReLU and head weights in registers, and stores one float32 per (query, key) into a bounded workspace.
While it walks over the keys with stride ``GROUPS`` it also keeps each stride class's maximum. The k-th largest
of those maxima is a lower bound of the k-th largest score, so ``_select_kernel`` reads each row once, keeps the
few scores above the bound, and selects exactly among them. Order is total (score, then lower key index), thus
the result does not depend on tiles, splits or timing.

B batch, T queries, S keys, I indexer heads, J indexer dim, K top-k.
"""

import torch
import triton
import triton.language as tl

# Bytes of scores held at once, and queries at most (each needs another 64 KiB of scratch at top-2048).
WORKSPACE = 1 << 29
CHUNK = 2048
# Key tiles that one program of the score kernel should see, so that loading its queries is paid back.
TILES = 32
_INTERPRET = triton.knobs.runtime.interpret
FP8 = torch.float8_e4m3fn


def quantize_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x8, scale): float8 e4m3 values and a float32 scale for each row (last dimension), ``x = x8 * scale``."""
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
    block_keys: int = 64,
) -> torch.Tensor:
    """As ``reference.indexer_topk``; scores are summed in float32 from exact products of the inputs.

    Args:
        k_scale_BS: float32 scale of each key, for float8 keys (``quantize_fp8``). The scales of float8 queries
            belong into ``weight_BTI``.
        order: "score" as in the reference, or "index" for ascending key index (cheaper: no sort).
        block_keys: keys of a tile, 64 or 128; the result does not depend on it.

    Raises:
        ValueError: head counts that are not a power of two of at least 2, or top_k above 8192.
    """
    B, T, I, J = q_BTIJ.shape
    S = k_BSJ.shape[1]
    if I < 2 or I & (I - 1) or J & (J - 1) or J < 16:
        raise ValueError(f"the indexer kernel needs powers of two for heads and dim, got {I} heads of {J}")
    if top_k > 8192 or order not in ("score", "index"):
        raise ValueError(f"top_k {top_k} must be at most 8192 and order {order!r} 'score' or 'index'")
    # The order of the sum over heads belongs to BQ, so BQ is fixed by the head count alone.
    BS, BQ = block_keys, max(4, 128 // I)
    K2 = triton.next_power_of_2(top_k)
    groups = max(BS, min(triton.next_power_of_2(max(S, 1)), 2 * K2))
    q, k, weight = q_BTIJ.contiguous(), k_BSJ.contiguous(), weight_BTI.float().contiguous()
    start, stop = start_BT.int().contiguous(), stop_BT.int().contiguous()
    index_BTK = torch.empty(B, T, top_k, dtype=torch.int32, device=q.device)
    residues = max(1, min(groups // BS, TILES * groups // max(S, 1)))
    rows = max(1, min(CHUNK, WORKSPACE // (4 * max(S, 1))))
    batches = max(1, min(B, rows // T)) if T else 1
    queries = min(T, max(BQ, rows // BQ * BQ))
    row_count = batches * queries
    score = torch.empty(row_count, S, dtype=torch.float32, device=q.device)
    group_max = torch.empty(row_count, groups, dtype=torch.float32, device=q.device)
    candidate = torch.empty(row_count, 2, groups, dtype=torch.int32, device=q.device)
    picked = torch.empty(row_count, K2, dtype=torch.int64, device=q.device)
    for b in range(0, B, batches):
        Bc = min(batches, B - b)
        for t in range(0, T, queries):
            Tc = min(queries, T - t)
            group_max.fill_(float("-inf"))
            grid = (triton.cdiv(Tc, BQ) * triton.cdiv(groups // BS, residues), Bc)
            _score_kernel[grid](
                q, k, k_scale_BS if k_scale_BS is not None else weight, weight, start, stop, score, group_max,
                b, t, Tc, T, S,
                I=I, J=J, GROUPS=groups, BS=BS, BQ=BQ, RESIDUES=residues, SCALED=k_scale_BS is not None,
                UPCAST=_INTERPRET, num_warps=max(1, min(8, BS // 16)), num_stages=4,
            )  # fmt: skip
            _select_kernel[(Tc, Bc)](
                score, group_max, candidate, picked, index_BTK, start, stop, b, t, Tc, T, S, top_k,
                GROUPS=groups, K2=K2, BLOCK=min(2048, max(groups, 128)), SORTED=order == "index",
                num_warps=8 if K2 >= 512 else 1,
            )  # fmt: skip
            if order == "score":
                _sort_kernel[(Tc, Bc)](
                    picked, index_BTK, b, t, Tc, T, top_k, K2=K2, num_warps=16 if K2 >= 512 else 1
                )
    return index_BTK


@triton.jit
def _score_kernel(
    q, k, k_scale, weight, start, stop, score, group_max, b0, t0, Tc, T, S,
    I: tl.constexpr, J: tl.constexpr, GROUPS: tl.constexpr, BS: tl.constexpr, BQ: tl.constexpr,
    RESIDUES: tl.constexpr, SCALED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Scores of BQ queries for the keys ``residue * BS + [0, BS) + j * GROUPS`` of some residues, and their maxima
    over j.
    """
    query_blocks = tl.cdiv(Tc, BQ)
    block = tl.program_id(0) % query_blocks
    residue0 = tl.program_id(0) // query_blocks * RESIDUES
    b = b0 + tl.program_id(1)
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
    local_t = block * BQ + tl.arange(0, BQ)
    row_ok = local_t < Tc
    first = tl.load(start + b * T + t0 + local_t, mask=row_ok, other=2147483647)
    last = tl.load(stop + b * T + t0 + local_t, mask=row_ok, other=0)
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
    best = tl.full([BS, BQ], float("-inf"), tl.float32)
    if UPCAST:
        q_tile = q_tile.to(tl.float32)
    for step in range(full * more + (here - full) * fewer):
        rest = step - full * more
        tiles = tl.where(rest < 0, more, fewer)
        i = tl.where(rest < 0, step, rest)
        offset = (residue0 + i // tiles + tl.where(rest < 0, 0, full)) * BS
        j = i % tiles
        s = (j0 + j) * GROUPS + offset + tl.arange(0, BS)
        k_row = (b * S + s).to(tl.int64)
        k_tile = tl.load(k + k_row[:, None] * J + dims[None, :], mask=s[:, None] < S, other=0.0)
        if UPCAST:
            k_tile = k_tile.to(tl.float32)
        dot = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
        part = (dot + tl.abs(dot)) * half_w[None, :]
        part = tl.permute(tl.reshape(part, [BS, BQ // 4, I // 2, 4, 2]), (0, 1, 3, 2, 4))
        total = tl.sum(tl.reshape(part, [BS, BQ, I]), axis=2)
        if SCALED:
            total *= tl.load(k_scale + b * S + s, mask=s < S, other=0.0)[:, None]
        total = tl.where(total == 0.0, 0.0, total)  # -0.0 ties with 0.0
        seen = (s[:, None] >= first[None, :]) & (s[:, None] < last[None, :])
        best = tl.where(j == 0, float("-inf"), best)
        best = tl.maximum(best, tl.where(seen, total, float("-inf")))
        tl.store(score + row[None, :].to(tl.int64) * S + s[:, None], total, mask=seen)
        place = row[None, :].to(tl.int64) * GROUPS + offset + tl.arange(0, BS)[:, None]
        rows_done = tl.where(j == tiles - 1, Tc, 0)
        tl.store(group_max + place, best, mask=(local_t < rows_done)[None, :])


@triton.jit
def _ordered(x):
    """uint32 that orders like the float32."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, ~bits, bits ^ 0x80000000)


@triton.jit
def _kth_largest(key, K, BITS: tl.constexpr):
    """Largest uint32 t, up to its first BITS bits, with at least K of ``key`` at or above it (0 if there are
    fewer).
    """
    t = tl.zeros([], tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    for _ in range(BITS):
        t = tl.where(tl.sum((key >= (t | bit)).to(tl.int32)) >= K, t | bit, t)
        bit = bit >> 1
    return t


@triton.jit
def _kth_largest_of_row(row_ptr, lo, hi, K, BLOCK: tl.constexpr):
    """As ``_kth_largest`` over a row in memory, in 32 passes: only for rows with too many candidates."""
    t = tl.zeros([], tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    for _ in range(32):
        count = tl.zeros([], tl.int32)
        for s0 in range(lo, hi, BLOCK):
            s = s0 + tl.arange(0, BLOCK)
            key = _ordered(tl.load(row_ptr + s, mask=s < hi, other=0.0))
            count += tl.sum(((key >= (t | bit)) & (s < hi)).to(tl.int32))
        t = tl.where(count >= K, t | bit, t)
        bit = bit >> 1
    return t


@triton.jit
def _compact(row_ptr, list_ptr, lo, hi, bound, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Lists (score, index), in index order, of all scores from the bound on. Returns the length, which may exceed
    the GROUPS places that exist.
    """
    count = tl.zeros([], tl.int32)
    for s0 in range(lo, hi, BLOCK):
        s = s0 + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + s, mask=s < hi, other=float("-inf"))
        keep = (x >= bound) & (x > float("-inf"))
        place = count + tl.cumsum(keep.to(tl.int32), 0) - 1
        count += tl.sum(keep.to(tl.int32))
        keep = keep & (place < GROUPS)
        tl.store(list_ptr + place, x.to(tl.int32, bitcast=True), mask=keep)
        tl.store(list_ptr + GROUPS + place, s, mask=keep)
    return count


@triton.jit
def _compact_ties(row_ptr, list_ptr, lo, hi, bound, K, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """As ``_compact``, but of the scores that equal the bound only the first K: they may be a plateau."""
    above = tl.zeros([], tl.int32)
    equal = tl.zeros([], tl.int32)
    for s0 in range(lo, hi, BLOCK):
        s = s0 + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + s, mask=s < hi, other=float("-inf"))
        gt = (x > bound) & (s < hi)
        eq = (x == bound) & (s < hi)
        both = gt.to(tl.int32) + (eq.to(tl.int32) << 16)
        upto = tl.cumsum(both, 0)
        rank = equal + (upto >> 16)
        place = above + (upto & 0xFFFF) + tl.minimum(rank, K) - 1
        keep = (gt | (eq & (rank <= K))) & (place < GROUPS)
        tl.store(list_ptr + place, x.to(tl.int32, bitcast=True), mask=keep)
        tl.store(list_ptr + GROUPS + place, s, mask=keep)
        total = tl.sum(both)
        above += total & 0xFFFF
        equal += total >> 16
    return above + tl.minimum(equal, K)


@triton.jit
def _score_of(key):
    """The float32 that ``_ordered`` maps to the key."""
    bits = tl.where((key >> 31) != 0, key ^ 0x80000000, ~key)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _select_kernel(
    score, group_max, candidate, picked, index, start, stop, b0, t0, Tc, T, S, K,
    GROUPS: tl.constexpr, K2: tl.constexpr, BLOCK: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """Exact top-K of one row, in index order: to ``index``, or with their scores to ``picked``."""
    local_t = tl.program_id(0)
    row = (tl.program_id(1) * Tc + local_t).to(tl.int64)
    out_row = ((b0 + tl.program_id(1)) * T + t0 + local_t).to(tl.int64)
    lo = tl.load(start + out_row)
    hi = tl.load(stop + out_row)
    slot = tl.arange(0, GROUPS)
    # A bound needs no more than its leading bits. Below K visible keys it is under every score.
    bound = _kth_largest(_ordered(tl.load(group_max + row * GROUPS + slot)), K, 18)
    bound = tl.where(hi - lo <= K, float("-inf"), _score_of(bound))
    row_ptr = score + row * S
    list_ptr = candidate + row * 2 * GROUPS
    length = _compact(row_ptr, list_ptr, lo, hi, bound, GROUPS, BLOCK)
    if length > GROUPS:
        tl.debug_barrier()
        length = _compact_ties(row_ptr, list_ptr, lo, hi, bound, K, GROUPS, BLOCK)
        if length > GROUPS:
            bound = _score_of(_kth_largest_of_row(row_ptr, lo, hi, K, BLOCK))
            tl.debug_barrier()
            length = _compact_ties(row_ptr, list_ptr, lo, hi, bound, K, GROUPS, BLOCK)
    tl.debug_barrier()  # the list was written by other threads
    listed = slot < length
    key = _ordered(tl.load(list_ptr + slot, mask=listed, other=-1).to(tl.float32, bitcast=True))
    s = tl.load(list_ptr + GROUPS + slot, mask=listed, other=0)
    least = _kth_largest(key, K, 32)
    gt = listed & (key > least)
    eq = listed & (key == least)
    both = gt.to(tl.int32) + (eq.to(tl.int32) << 16)
    upto = tl.cumsum(both, 0)
    ties = K - (tl.sum(both) & 0xFFFF)
    place = (upto & 0xFFFF) + tl.minimum(upto >> 16, ties) - 1
    keep = gt | (eq & ((upto >> 16) <= ties))
    rest = tl.arange(0, K2)
    if SORTED:
        tl.store(index + out_row * K + place, s, mask=keep)
        tl.store(index + out_row * K + rest, -1, mask=(rest >= length) & (rest < K))
    else:
        # Ascending order of this number is descending order of score, then ascending order of index.
        tl.store(picked + row * K2 + place, ((~key).to(tl.int64) << 31) | s, mask=keep)
        tl.store(picked + row * K2 + rest, 0x7FFFFFFFFFFFFFFF, mask=rest >= tl.minimum(length, K))


@triton.jit
def _sort_kernel(picked, index, b0, t0, Tc, T, K, K2: tl.constexpr):
    row = (tl.program_id(1) * Tc + tl.program_id(0)).to(tl.int64)
    out_row = ((b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)).to(tl.int64)
    rank = tl.arange(0, K2)
    best = tl.sort(tl.load(picked + row * K2 + rank))
    s = tl.where(best == 0x7FFFFFFFFFFFFFFF, -1, (best & 0x7FFFFFFF).to(tl.int32))
    tl.store(index + out_row * K + rank, s, mask=rank < K)
