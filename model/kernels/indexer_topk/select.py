"""The exact top-K of rows of scores, in index order, on CUDA.

Long rows: the K-th largest of the classes' maxima is a lower bound of the K-th largest score, so one reading
of the row lists the few scores from it on, and the best are picked from the list. Short rows are picked from
as they are.

B batch, T queries, S keys, I indexer heads, J indexer dim, K top-k.
"""

import triton
import triton.language as tl

_LEAST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _ordered(x):
    """uint32 that orders like the float32."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, ~bits, bits ^ 0x80000000)


@triton.jit
def _score_of(key):
    """The float32 that ``_ordered`` maps to the key."""
    bits = tl.where((key >> 31) != 0, key ^ 0x80000000, ~key)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _kth_largest(key, low, K, slack, BITS: tl.constexpr):
    """A uint32 t with K to K + slack of ``key`` at or above it; where ties or the first BITS bits do not
    allow that, the largest with at least K. ``low`` must have at least K at or above it; bits that it shares
    with the largest key cost no count.
    """
    high = tl.max(key)
    t = tl.zeros([], tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    n = tl.full([], 2147483647, tl.int32)
    step = 0
    while (step < BITS) & (n > K + slack):
        c = t | bit
        if c <= low:
            t = c
        elif c <= high:
            m = tl.sum((key >= c).to(tl.int32))
            if m >= K:
                t = c
                n = m
        bit = bit >> 1
        step += 1
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
def bound_kernel(group_max, bound, start, stop, b0, t0, Tc, T, K, GROUPS: tl.constexpr):
    """A lower bound of each row's K-th largest score. It needs only the leading bits of the K-th largest
    maximum.
    """
    row = tl.program_id(1) * Tc + tl.program_id(0)
    out_row = (b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)
    lo = tl.load(start + out_row)
    seen = tl.load(stop + out_row) - lo
    if seen <= K:
        tl.store(bound + row, _LEAST)
    else:
        # Classes without a visible key were not written.
        group = tl.arange(0, GROUPS)
        met = ((group - lo) & (GROUPS - 1)) < seen
        key = _ordered(tl.load(group_max + row.to(tl.int64) * GROUPS + group))
        low = tl.min(tl.where(met, key, 0xFFFFFFFF))
        t = _kth_largest(tl.where(met, key, 0), low, K, K // 32, 20)
        tl.store(bound + row, tl.maximum(_score_of(t), _LEAST))


@triton.jit(do_not_specialize=["width"])
def compact_kernel(
    score, bound, candidate, length, start, stop, b0, t0, Tc, T, width, trivial,
    GROUPS: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lists (score, index) of one segment of a row, in index order, from the bound on. The segments' lengths
    may add up to more than GROUPS: then ``compact_ties_kernel`` lists again.
    """
    segment = tl.program_id(0) % SEGMENTS
    local_t = tl.program_id(0) // SEGMENTS
    row = (tl.program_id(1) * Tc + local_t).to(tl.int64)
    out_row = (b0 + tl.program_id(1)) * T + t0 + local_t
    lo = tl.load(start + out_row)
    hi = tl.load(stop + out_row)
    hi = tl.where(hi - lo <= trivial, lo, hi)
    final = tl.maximum(tl.cdiv(hi, BLOCK) - 1, 0)
    share = tl.cdiv(final + 1 - lo // BLOCK, SEGMENTS)
    first = lo // BLOCK + segment * share
    last = tl.minimum(final + 1, first + share)
    row_ptr = score + row * width
    list_ptr = candidate + (row * SEGMENTS + segment) * (GROUPS + BLOCK)
    least = tl.load(bound + row)
    # A block is (4 parts, 32 lanes).
    lane = tl.arange(0, 4)[:, None] * 32 + tl.arange(0, 32)[None, :]
    row_ptr = row_ptr + tl.arange(0, 32)[None, :] + tl.arange(0, 4)[:, None] * 32
    count = tl.zeros([], tl.int32)
    # Four blocks are loaded ahead: a segment is long and its warp is alone with it.
    x0 = tl.load(row_ptr + tl.minimum(first, final) * BLOCK)
    x1 = tl.load(row_ptr + tl.minimum(first + 1, final) * BLOCK)
    x2 = tl.load(row_ptr + tl.minimum(first + 2, final) * BLOCK)
    x3 = tl.load(row_ptr + tl.minimum(first + 3, final) * BLOCK)
    if first < last:
        x0 = _hide(x0, first * BLOCK + lane, lo, hi)
        for block in tl.range(first, last - 1, loop_unroll_factor=4):
            x = x0
            x0, x1, x2 = x1, x2, x3
            x3 = tl.load(row_ptr + tl.minimum(block + 4, final) * BLOCK)
            count = _list(list_ptr, count, x, block * BLOCK + lane, least, GROUPS, BLOCK)
        x0 = _hide(x0, (last - 1) * BLOCK + lane, lo, hi)
        count = _list(list_ptr, count, x0, (last - 1) * BLOCK + lane, least, GROUPS, BLOCK)
    tl.store(length + row * SEGMENTS + segment, count)


@triton.jit
def _hide(x, s, lo, hi):
    return tl.where((s >= lo) & (s < hi), x, float("-inf"))


@triton.jit
def _list(list_ptr, count, x, s, least, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Lists what is kept of x (4 parts, 32 lanes), keys s. A lane's marks of the four parts are the bytes of
    one number: one scan over the lanes places them all, a product adds up the parts before.
    """
    # The list holds BLOCK more than may be used: beyond that nothing more is listed, as no score is >= NaN.
    keep = x >= tl.where(count <= GROUPS, least, float("nan"))
    shift = (tl.arange(0, 4) * 8)[:, None]
    mark = keep.to(tl.int32)
    marks = tl.sum(mark << shift, 0)
    total = tl.sum(marks, 0)
    upto = tl.cumsum(marks, 0) + total * 0x01010100
    place = count + ((upto[None, :] >> shift) & 0xFF) - mark
    entry = (x.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | s.to(tl.uint32).to(tl.uint64)
    tl.store(
        list_ptr + tl.reshape(place, [BLOCK]),
        tl.reshape(entry.to(tl.int64), [BLOCK]),
        mask=tl.reshape(keep, [BLOCK]),
    )
    return count + (((total * 0x01010101) >> 24) & 0xFF)


@triton.jit
def compact_ties_kernel(
    score, bound, candidate, length, start, stop, b0, t0, Tc, T, width, K,
    GROUPS: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
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
        row_ptr = score + row * width
        list_ptr = candidate + row * SEGMENTS * (GROUPS + BLOCK)
        least = tl.load(bound + row)
        count = _compact_ties(row_ptr, list_ptr, lo, hi, least, K, GROUPS, STEP)
        if count > GROUPS:
            least = _score_of(_kth_largest_of_row(row_ptr, lo, hi, K, STEP))
            tl.debug_barrier()
            count = _compact_ties(row_ptr, list_ptr, lo, hi, least, K, GROUPS, STEP)
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
        entry = (x.to(tl.int32, bitcast=True).to(tl.int64) << 32) | s.to(tl.int64)
        tl.store(list_ptr + place, entry, mask=keep)
        total = tl.sum(both)
        above += total & 0xFFFF
        equal += total >> 16
    return above + tl.minimum(equal, K)


@triton.jit
def pick_kernel(
    candidate, length, bound, picked, index, start, stop, b0, t0, Tc, T, K, trivial,
    GROUPS: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr,
    K2: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """Exact top-K of each row's list, in index order: to ``index``, or with the scores to ``picked``."""
    row = (tl.program_id(1) * Tc + tl.program_id(0)).to(tl.int64)
    out_row = ((b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)).to(tl.int64)
    rest = tl.arange(0, K2)
    lo = tl.load(start + out_row)
    seen = tl.load(stop + out_row) - lo
    if seen <= trivial:
        tl.store(index + out_row * K + rest, tl.where(rest < seen, lo + rest, -1), mask=rest < K)
    else:
        slot = tl.arange(0, GROUPS)
        # The segments' lists one behind the other: place of slot p in its own segment's list.
        count = tl.zeros([], tl.int32)
        own = slot
        for segment in tl.static_range(SEGMENTS):
            own = tl.where(slot >= count, segment * (GROUPS + BLOCK) + slot - count, own)
            count += tl.load(length + row * SEGMENTS + segment)
        listed = slot < count
        entry = tl.load(candidate + row * SEGMENTS * (GROUPS + BLOCK) + own, mask=listed, other=-1)
        key = tl.where(listed, _ordered((entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)), 0)
        s = entry.to(tl.int32)
        least = tl.zeros([], tl.uint32)
        if count > K:
            least = _kth_largest(key, _ordered(tl.load(bound + row)), K, 0, 32)
        _keep(picked, index, row, out_row, key, s, least, listed, count, K, K2, SORTED)


@triton.jit
def select_kernel(
    score, picked, index, start, stop, b0, t0, Tc, T, K, width, trivial,
    SIZE: tl.constexpr, K2: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """Exact top-K of each row of scores, in index order, as ``pick_kernel`` has it of a list."""
    row = (tl.program_id(1) * Tc + tl.program_id(0)).to(tl.int64)
    out_row = ((b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)).to(tl.int64)
    lo = tl.load(start + out_row)
    hi = tl.load(stop + out_row)
    if hi - lo <= trivial:
        rest = tl.arange(0, K2)
        tl.store(index + out_row * K + rest, tl.where(rest < hi - lo, lo + rest, -1), mask=rest < K)
    else:
        if hi <= SIZE // 2:
            _select(score, picked, index, row, out_row, lo, hi, K, width, SIZE // 2, K2, SORTED)
        else:
            _select(score, picked, index, row, out_row, lo, hi, K, width, SIZE, K2, SORTED)


@triton.jit
def _select(
    score,
    picked,
    index,
    row,
    out_row,
    lo,
    hi,
    K,
    width,
    SIZE: tl.constexpr,
    K2: tl.constexpr,
    SORTED: tl.constexpr,
):
    s = tl.arange(0, SIZE)
    x = tl.load(score + row * width + s)
    seen = (s >= lo) & (s < hi)
    key = tl.where(seen, _ordered(x), 0)
    least = tl.zeros([], tl.uint32)
    if hi - lo > K:
        least = _kth_largest(key, tl.min(tl.where(seen, key, 0xFFFFFFFF)), K, 0, 32)
    _keep(picked, index, row, out_row, key, s, least, seen, hi - lo, K, K2, SORTED)


@triton.jit
def _keep(
    picked, index, row, out_row, key, s, least, listed, count, K, K2: tl.constexpr, SORTED: tl.constexpr
):
    """Writes the keys above ``least`` and the first ones at it, K in all, in the order they are in."""
    rest = tl.arange(0, K2)
    gt = listed & (key > least)
    eq = listed & (key == least)
    both = gt.to(tl.int32) + (eq.to(tl.int32) << 16)
    upto = tl.cumsum(both, 0)
    ties = K - (tl.sum(both) & 0xFFFF)
    place = (upto & 0xFFFF) + tl.minimum(upto >> 16, ties) - 1
    keep = gt | (eq & ((upto >> 16) <= ties))
    if SORTED:
        tl.store(index + out_row * K + place, s, mask=keep)
        tl.store(index + out_row * K + rest, -1, mask=(rest >= count) & (rest < K))
    else:
        # Ascending order of this number is descending order of score, then ascending order of index.
        tl.store(picked + row * K2 + place, ((~key).to(tl.int64) << 31) | s, mask=keep)
        tl.store(picked + row * K2 + rest, 0x7FFFFFFFFFFFFFFF, mask=rest >= tl.minimum(count, K))


@triton.jit
def sort_kernel(picked, index, b0, t0, Tc, T, K, K2: tl.constexpr):
    row = (tl.program_id(1) * Tc + tl.program_id(0)).to(tl.int64)
    out_row = ((b0 + tl.program_id(1)) * T + t0 + tl.program_id(0)).to(tl.int64)
    rank = tl.arange(0, K2)
    best = tl.sort(tl.load(picked + row * K2 + rank))
    s = tl.where(best == 0x7FFFFFFFFFFFFFFF, -1, (best & 0x7FFFFFFF).to(tl.int32))
    tl.store(index + out_row * K + rank, s, mask=rank < K)
