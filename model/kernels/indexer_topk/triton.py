"""Lightning indexer with exact top-k on CUDA: the contract is ``reference.indexer_topk``.

Kernels over chunks of queries. ``_score_kernel`` multiplies a tile of keys with the heads of a few queries,
applies ReLU and head weights in registers, and stores one float32 per (query, key) into a bounded workspace.
While it walks over the keys with stride ``GROUPS`` it also keeps each stride class's maximum. The k-th
largest of those maxima is a lower bound of the k-th largest score, so ``_compact_kernel`` reads each row
once, keeps the few scores above the bound, and selects exactly among them. Order is total (score, then lower
key index), thus the result does not depend on tiles, splits or timing.

B batch, T queries, S keys, I indexer heads, J indexer dim, K top-k.
"""

import torch
import triton
import triton.language as tl

# Bytes of scores held at once, and queries at most (each needs another 160 KiB of scratch at top-2048).
WORKSPACE = 1 << 29
CHUNK = 2048
# Key tiles that one program of the score kernel should see, so that loading its queries is paid back.
TILES = 32
# Parts of a row that are filtered side by side, each by one warp.
SEGMENTS = 4
_INTERPRET = triton.knobs.runtime.interpret
FP8 = torch.float8_e4m3fn


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
    S = k_BSJ.shape[1] if row_BS is None else row_BS.shape[1]
    if I < 2 or I & (I - 1) or J & (J - 1) or J < 16:
        raise ValueError(f"the indexer kernel needs powers of two for heads and dim, got {I} heads of {J}")
    if top_k > 8192 or order not in ("score", "index", "any"):
        raise ValueError(f"top_k {top_k} must be at most 8192, order {order!r} 'score', 'index' or 'any'")
    # The order of the sum over heads belongs to BQ, so BQ is fixed by the head count alone.
    BS, BQ = block_keys, max(4, 128 // I)
    K2 = triton.next_power_of_2(top_k)
    groups = max(BS, min(triton.next_power_of_2(max(S, 1)), 2 * K2))
    q, k, weight = q_BTIJ.contiguous(), k_BSJ.contiguous(), weight_BTI.float().contiguous()
    start, stop = start_BT.int().contiguous(), stop_BT.int().contiguous()
    place = start if row_BS is None else row_BS.contiguous()
    index_BTK = torch.empty(B, T, top_k, dtype=torch.int32, device=q.device)
    residues = max(1, min(groups // BS, TILES * groups // max(S, 1)))
    rows = max(1, min(CHUNK, WORKSPACE // (4 * max(S, 1))))
    batches = max(1, min(B, rows // T)) if T else 1
    queries = min(T, max(BQ, rows // BQ * BQ))
    row_count = batches * queries
    score = torch.empty(row_count, S, dtype=torch.float32, device=q.device)
    group_max = torch.empty(row_count, groups, dtype=torch.float32, device=q.device)
    candidate = torch.empty(row_count, SEGMENTS, 2, groups, dtype=torch.int32, device=q.device)
    picked = torch.empty(row_count, K2 if order == "score" else 0, dtype=torch.int64, device=q.device)
    bound = torch.empty(row_count, dtype=torch.float32, device=q.device)
    length = torch.empty(row_count, SEGMENTS, dtype=torch.int32, device=q.device)
    warps, block = max(1, min(4, groups // 1024)), min(512, max(groups, 128))
    for b in range(0, B, batches):
        Bc = min(batches, B - b)
        for t in range(0, T, queries):
            Tc = min(queries, T - t)
            group_max.fill_(float("-inf"))
            grid = (triton.cdiv(Tc, BQ) * triton.cdiv(groups // BS, residues), Bc)
            _score_kernel[grid](
                q, k, place, k_scale_BS if k_scale_BS is not None else weight, weight, start, stop, score,
                group_max, b, t, Tc, T, S,
                I=I, J=J, GROUPS=groups, BS=BS, BQ=BQ, RESIDUES=residues, PAGED=row_BS is not None,
                SCALED=k_scale_BS is not None, UPCAST=_INTERPRET,
                num_warps=max(1, min(8, BS // 16)), num_stages=4,
            )  # fmt: skip
            rows_grid, chunk = (Tc, Bc), (b, t, Tc, T)
            _bound_kernel[rows_grid](
                group_max, bound, start, stop, *chunk, top_k, GROUPS=groups, num_warps=warps
            )
            lists = (score, bound, candidate, length, start, stop, *chunk, S)
            sizes = dict(GROUPS=groups, SEGMENTS=SEGMENTS)
            _compact_kernel[(Tc * SEGMENTS, Bc)](*lists, **sizes, BLOCK=block, num_warps=1)
            _compact_ties_kernel[rows_grid](*lists, top_k, **sizes, BLOCK=block, num_warps=4)
            _pick_kernel[rows_grid](
                candidate, length, picked, index_BTK, *chunk, top_k,
                **sizes, K2=K2, SORTED=order != "score", num_warps=warps,
            )  # fmt: skip
            if order == "score":
                _sort_kernel[rows_grid](
                    picked, index_BTK, *chunk, top_k, K2=K2, num_warps=16 if K2 >= 512 else 1
                )
    return index_BTK


@triton.jit
def _score_kernel(
    q, k, place_of, k_scale, weight, start, stop, score, group_max, b0, t0, Tc, T, S,
    I: tl.constexpr, J: tl.constexpr, GROUPS: tl.constexpr, BS: tl.constexpr, BQ: tl.constexpr,
    RESIDUES: tl.constexpr, PAGED: tl.constexpr, SCALED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Scores of BQ queries for the keys ``residue * BS + [0, BS) + j * GROUPS`` of some residues, and their
    maxima over j.
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
    place = group_max + row[None, :].to(tl.int64) * GROUPS + tl.arange(0, BS)[:, None]
    if UPCAST:
        q_tile = q_tile.to(tl.float32)
    offset = residue0 * BS
    for step in range(full * more + (here - full) * fewer):
        if RESIDUES > 1:
            rest = step - full * more
            tiles = tl.where(rest < 0, more, fewer)
            i = tl.where(rest < 0, step, rest)
            offset = (residue0 + i // tiles + tl.where(rest < 0, 0, full)) * BS
            j = i % tiles
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
        best = tl.maximum(best, tl.where(seen, total, float("-inf")))
        tl.store(score + row[None, :].to(tl.int64) * S + s[:, None], total, mask=seen)
        if RESIDUES > 1:
            rows_done = tl.where(j == tiles - 1, Tc, 0)
            tl.store(place + offset, best, mask=(local_t < rows_done)[None, :])
    if RESIDUES == 1:
        tl.store(place + offset, best, mask=row_ok[None, :])


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
def _score_of(key):
    """The float32 that ``_ordered`` maps to the key."""
    bits = tl.where((key >> 31) != 0, key ^ 0x80000000, ~key)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _bound_kernel(group_max, bound, start, stop, b0, t0, Tc, T, K, GROUPS: tl.constexpr):
    """A lower bound of each row's K-th largest score. It needs only the leading bits of the K-th largest
    maximum.
    """
    row = tl.program_id(1) * Tc + tl.program_id(0)
    out_row = (b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)
    maxima = tl.load(group_max + row.to(tl.int64) * GROUPS + tl.arange(0, GROUPS))
    seen = tl.load(stop + out_row) - tl.load(start + out_row)
    value = _score_of(_kth_largest(_ordered(maxima), K, 18))
    tl.store(bound + row, tl.where(seen <= K, float("-inf"), value))


@triton.jit
def _compact_kernel(
    score, bound, candidate, length, start, stop, b0, t0, Tc, T, S,
    GROUPS: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lists (score, index) of one segment of a row, in index order, from the bound on. The segments' lengths
    may add up to more than GROUPS: then ``_compact_ties_kernel`` lists again.
    """
    segment = tl.program_id(0) % SEGMENTS
    local_t = tl.program_id(0) // SEGMENTS
    row = (tl.program_id(1) * Tc + local_t).to(tl.int64)
    out_row = (b0 + tl.program_id(1)) * T + t0 + local_t
    lo = tl.load(start + out_row)
    hi = tl.load(stop + out_row)
    share = tl.cdiv(tl.cdiv(hi - lo, SEGMENTS), BLOCK) * BLOCK
    lo += segment * share
    hi = tl.minimum(hi, lo + share)
    row_ptr = score + row * S
    list_ptr = candidate + (row * SEGMENTS + segment) * 2 * GROUPS
    least = tl.load(bound + row)
    lane = tl.arange(0, BLOCK)
    count = tl.zeros([], tl.int32)
    # Two blocks are loaded ahead: a segment is long and its warp is alone with it.
    following = tl.load(row_ptr + lo + lane, mask=lo + lane < hi, other=float("-inf"))
    later = tl.load(row_ptr + lo + BLOCK + lane, mask=lo + BLOCK + lane < hi, other=float("-inf"))
    for s0 in range(lo, hi, BLOCK):
        s = s0 + lane
        x = following
        following = later
        later = tl.load(row_ptr + s + 2 * BLOCK, mask=s + 2 * BLOCK < hi, other=float("-inf"))
        keep = (x >= least) & (x > float("-inf"))
        place = count + tl.cumsum(keep.to(tl.int32), 0) - 1
        count += tl.sum(keep.to(tl.int32))
        keep = keep & (place < GROUPS)
        tl.store(list_ptr + place, x.to(tl.int32, bitcast=True), mask=keep)
        tl.store(list_ptr + GROUPS + place, s, mask=keep)
    tl.store(length + row * SEGMENTS + segment, count)


@triton.jit
def _compact_ties_kernel(
    score, bound, candidate, length, start, stop, b0, t0, Tc, T, S, K,
    GROUPS: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For rows with too long lists: of the scores that equal the bound (a plateau) only the first K count. If
    that does not help, the bound is replaced by the K-th largest score itself. The list is then in the first
    segment.
    """
    row = (tl.program_id(1) * Tc + tl.program_id(0)).to(tl.int64)
    out_row = (b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)
    segment = tl.arange(0, SEGMENTS)
    count = tl.sum(tl.load(length + row * SEGMENTS + segment))
    if count > GROUPS:
        lo = tl.load(start + out_row)
        hi = tl.load(stop + out_row)
        row_ptr = score + row * S
        list_ptr = candidate + row * SEGMENTS * 2 * GROUPS
        least = tl.load(bound + row)
        count = _compact_ties(row_ptr, list_ptr, lo, hi, least, K, GROUPS, BLOCK)
        if count > GROUPS:
            least = _score_of(_kth_largest_of_row(row_ptr, lo, hi, K, BLOCK))
            tl.debug_barrier()
            count = _compact_ties(row_ptr, list_ptr, lo, hi, least, K, GROUPS, BLOCK)
        tl.store(length + row * SEGMENTS + segment, tl.where(segment == 0, count, 0))


@triton.jit
def _compact_ties(row_ptr, list_ptr, lo, hi, least, K, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    above = tl.zeros([], tl.int32)
    equal = tl.zeros([], tl.int32)
    for s0 in range(lo, hi, BLOCK):
        s = s0 + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + s, mask=s < hi, other=float("-inf"))
        gt = (x > least) & (s < hi)
        eq = (x == least) & (s < hi)
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
def _pick_kernel(
    candidate, length, picked, index, b0, t0, Tc, T, K, GROUPS: tl.constexpr, SEGMENTS: tl.constexpr,
    K2: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """Exact top-K of each row's list, in index order: to ``index``, or with the scores to ``picked``."""
    row = (tl.program_id(1) * Tc + tl.program_id(0)).to(tl.int64)
    out_row = ((b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)).to(tl.int64)
    slot = tl.arange(0, GROUPS)
    # The segments' lists one behind the other: place of slot p in its own segment's list.
    count = tl.zeros([], tl.int32)
    own = slot
    for segment in tl.static_range(SEGMENTS):
        own = tl.where(slot >= count, segment * 2 * GROUPS + slot - count, own)
        count += tl.load(length + row * SEGMENTS + segment)
    listed = slot < count
    list_ptr = candidate + row * SEGMENTS * 2 * GROUPS + own
    key = _ordered(tl.load(list_ptr, mask=listed, other=-1).to(tl.float32, bitcast=True))
    s = tl.load(list_ptr + GROUPS, mask=listed, other=0)
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
        tl.store(index + out_row * K + rest, -1, mask=(rest >= count) & (rest < K))
    else:
        # Ascending order of this number is descending order of score, then ascending order of index.
        tl.store(picked + row * K2 + place, ((~key).to(tl.int64) << 31) | s, mask=keep)
        tl.store(picked + row * K2 + rest, 0x7FFFFFFFFFFFFFFF, mask=rest >= tl.minimum(count, K))


@triton.jit
def _sort_kernel(picked, index, b0, t0, Tc, T, K, K2: tl.constexpr):
    row = (tl.program_id(1) * Tc + tl.program_id(0)).to(tl.int64)
    out_row = ((b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)).to(tl.int64)
    rank = tl.arange(0, K2)
    best = tl.sort(tl.load(picked + row * K2 + rank))
    s = tl.where(best == 0x7FFFFFFFFFFFFFFF, -1, (best & 0x7FFFFFFF).to(tl.int32))
    tl.store(index + out_row * K + rank, s, mask=rank < K)
