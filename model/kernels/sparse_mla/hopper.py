"""Sparse MLA's forward pass for Hopper in Gluon, Triton's lower-level dialect, at GLM-5's head sizes.

Plain Triton gives the score product to both warpgroups in full and issues the gather of the next tile only
after the current one is done. Here two warpgroups share each product, and the gather of tile j + 1 runs
during all of tile j.

Shared memory: the query (64 heads x 576) and two tiles of 64 gathered rows.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Heads of one program, latent, rotated dims, keys of one tile.
HEADS, LATENT, ROTATED, TILE = gl.constexpr(64), gl.constexpr(512), gl.constexpr(64), gl.constexpr(64)
LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
WARPS = 8


def fits(q: torch.Tensor, latent: int) -> bool:
    """Whether the kernel takes these queries (B, T, N, X)."""
    return (
        q.is_cuda
        and torch.cuda.get_device_capability(q.device)[0] == 9
        and q.dtype == torch.bfloat16
        and q.shape[-2] % HEADS.value == 0
        and latent == LATENT.value
        and q.shape[-1] == LATENT.value + ROTATED.value
    )


def launch(q, kv, index, out, lse, scale: float, splits: int) -> None:
    """Fills out (splits, B, T, N, C) and lse (splits, B, T, N) from q (B, T, N, X), kv (B, S, X), index (B,
    T, K).
    """
    B, T, N, _ = q.shape
    _forward[(B * T, N // HEADS.value, splits)](
        q, kv, index, out, lse, scale * LOG2E.value, T, kv.shape[1], N, index.shape[-1], B * T, splits,
        num_warps=WARPS,
    )  # fmt: skip


@gluon.jit
def _gather(kv, base, s, latent_tile, rotated_tile, wide: gl.constexpr, narrow: gl.constexpr, s_narrow):
    """Starts copying the rows ``s`` into shared memory; negative rows copy row 0 and are masked later."""
    X: gl.constexpr = LATENT + ROTATED
    c = gl.arange(0, LATENT, layout=gl.SliceLayout(0, wide))
    r = gl.arange(0, ROTATED, layout=gl.SliceLayout(0, narrow))
    row = (base + gl.maximum(s, 0)).to(gl.int64) * X
    row_narrow = (base + gl.maximum(s_narrow, 0)).to(gl.int64) * X + LATENT
    async_copy.async_copy_global_to_shared(latent_tile, kv + gl.expand_dims(row, 1) + gl.expand_dims(c, 0))
    async_copy.async_copy_global_to_shared(
        rotated_tile, kv + gl.expand_dims(row_narrow, 1) + gl.expand_dims(r, 0)
    )
    async_copy.commit_group()


@gluon.jit
def _forward(q, kv, index, out, lse, scale_log2, T, S, N, K, rows, splits):
    X: gl.constexpr = LATENT + ROTATED
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 256, 16])
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    key_axis: gl.constexpr = gl.SliceLayout(0, score_layout)
    head_axis: gl.constexpr = gl.SliceLayout(1, score_layout)
    row = gl.program_id(0)
    head0 = gl.program_id(1) * HEADS
    split = gl.program_id(2)

    dtype: gl.constexpr = q.dtype.element_ty
    q_c = gl.allocate_shared_memory(dtype, [HEADS, LATENT], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    k_c = gl.allocate_shared_memory(dtype, [2, TILE, LATENT], shared)
    k_r = gl.allocate_shared_memory(dtype, [2, TILE, ROTATED], shared)

    head_wide = gl.arange(0, HEADS, layout=gl.SliceLayout(1, wide))
    head_narrow = gl.arange(0, HEADS, layout=gl.SliceLayout(1, narrow))
    q_base = q + (row.to(gl.int64) * N + head0) * X
    c = gl.arange(0, LATENT, layout=gl.SliceLayout(0, wide))
    r = gl.arange(0, ROTATED, layout=gl.SliceLayout(0, narrow))
    async_copy.async_copy_global_to_shared(
        q_c, q_base + gl.expand_dims(head_wide, 1) * X + gl.expand_dims(c, 0)
    )
    async_copy.async_copy_global_to_shared(
        q_r, q_base + LATENT + gl.expand_dims(head_narrow, 1) * X + gl.expand_dims(r, 0)
    )
    async_copy.commit_group()

    tiles = gl.cdiv(gl.cdiv(K, TILE), splits)
    first = split * tiles * TILE
    last = gl.minimum(first + tiles * TILE, K)
    base = row // T * S
    index_row = index + row.to(gl.int64) * K
    k_wide = gl.arange(0, TILE, layout=gl.SliceLayout(1, wide))
    k_narrow = gl.arange(0, TILE, layout=gl.SliceLayout(1, narrow))
    k_score = gl.arange(0, TILE, layout=key_axis)
    s_wide = gl.load(index_row + first + k_wide, mask=first + k_wide < last, other=-1)
    s_narrow = gl.load(index_row + first + k_narrow, mask=first + k_narrow < last, other=-1)
    s_score = gl.load(index_row + first + k_score, mask=first + k_score < last, other=-1)
    _gather(kv, base, s_wide, k_c.index(0), k_r.index(0), wide, narrow, s_narrow)
    at = first + TILE
    s_wide = gl.load(index_row + at + k_wide, mask=at + k_wide < last, other=-1)
    s_narrow = gl.load(index_row + at + k_narrow, mask=at + k_narrow < last, other=-1)

    m = gl.full([HEADS], float("-inf"), gl.float32, layout=head_axis)
    norm = gl.full([HEADS], 0.0, gl.float32, layout=head_axis)
    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=score_layout)
    acc = gl.full([HEADS, LATENT], 0.0, gl.float32, layout=out_layout)
    buffer = 0
    for k0 in range(first, last, TILE):
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        latent = k_c.index(buffer)
        score = warpgroup_mma(q_c, latent.permute((1, 0)), zero, use_acc=False, is_async=True)
        score = warpgroup_mma(q_r, k_r.index(buffer).permute((1, 0)), score, is_async=True)
        # Every thread has passed the barrier, so the product that read the other buffer is complete.
        _gather(kv, base, s_wide, k_c.index(1 - buffer), k_r.index(1 - buffer), wide, narrow, s_narrow)
        ahead = k0 + 2 * TILE
        s_wide = gl.load(index_row + ahead + k_wide, mask=ahead + k_wide < last, other=-1)
        s_narrow = gl.load(index_row + ahead + k_narrow, mask=ahead + k_narrow < last, other=-1)
        present = s_score >= 0
        s_score = gl.load(index_row + k0 + TILE + k_score, mask=k0 + TILE + k_score < last, other=-1)
        score = warpgroup_mma_wait(0, deps=[score])
        score = gl.where(gl.expand_dims(present, 0), score * scale_log2, float("-inf"))
        m_new = gl.maximum(m, gl.max(score, 1))
        safe = gl.where(m_new == float("-inf"), 0.0, m_new)  # no key so far: exp2(-inf - 0) = 0
        p = gl.exp2(score - gl.expand_dims(safe, 1))
        shrink = gl.exp2(m - safe)
        m = m_new
        norm = norm * shrink + gl.sum(p, 1)
        acc = acc * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, out_layout)), 1)
        weight = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, out_layout, 2))
        acc = warpgroup_mma(weight, latent, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        buffer = 1 - buffer
    async_copy.wait_group(0)

    empty = norm == 0.0
    inverse = gl.where(empty, 0.0, 1.0 / gl.where(empty, 1.0, norm))
    acc = acc * gl.expand_dims(gl.convert_layout(inverse, gl.SliceLayout(1, out_layout)), 1)
    place = (split.to(gl.int64) * rows + row) * N + head0
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, out_layout))
    column = gl.arange(0, LATENT, layout=gl.SliceLayout(0, out_layout))
    gl.store(
        out + place * LATENT + gl.expand_dims(head, 1) * LATENT + gl.expand_dims(column, 0),
        acc.to(out.dtype.element_ty),
    )
    log = gl.where(empty, float("-inf"), (m + gl.log2(gl.where(empty, 1.0, norm))) * LN2)
    gl.store(lse + place + gl.arange(0, HEADS, layout=head_axis), log)


@gluon.jit
def _gather_part(kv, row, column, place):
    """Starts copying some columns of the rows at the offsets ``row`` into shared memory."""
    async_copy.async_copy_global_to_shared(place, kv + gl.expand_dims(row, 1) + gl.expand_dims(column, 0))


@gluon.jit
def _query_gradient(q, kv, flat, grad_out, out, lse, dq, weights, row0, scale, N, K):
    """``backward._query_kernel``. One tile of rows fits beside the query and its gradient, so the tile is
    refilled piece by piece: a quarter of the latent is overwritten as soon as ``dq`` has used it, while the
    rest is still in use, and the next tile's products start on the quarters that have arrived.
    """
    X: gl.constexpr = LATENT + ROTATED
    PART: gl.constexpr = LATENT // 4
    block: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16])
    part_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 64, 16])
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    key_axis: gl.constexpr = gl.SliceLayout(0, score_layout)
    head_axis: gl.constexpr = gl.SliceLayout(1, score_layout)
    dtype: gl.constexpr = q.dtype.element_ty
    local = gl.program_id(0).to(gl.int64)
    row = row0 + local
    head0 = gl.program_id(1) * HEADS

    q_c = gl.allocate_shared_memory(dtype, [4, HEADS, PART], shared)
    q_r = gl.allocate_shared_memory(dtype, [HEADS, ROTATED], shared)
    g = gl.allocate_shared_memory(dtype, [4, HEADS, PART], shared)
    k_c = gl.allocate_shared_memory(dtype, [4, TILE, PART], shared)
    k_r = gl.allocate_shared_memory(dtype, [TILE, ROTATED], shared)

    lane = gl.arange(0, TILE, layout=gl.SliceLayout(1, block))
    lane_r = gl.arange(0, TILE, layout=gl.SliceLayout(1, narrow))
    lane_s = gl.arange(0, TILE, layout=key_axis)
    c = gl.arange(0, PART, layout=gl.SliceLayout(0, block))
    r = gl.arange(0, ROTATED, layout=gl.SliceLayout(0, narrow)) + LATENT
    base = (row * N + head0).to(gl.int64)
    delta = gl.full([HEADS], 0.0, gl.float32, layout=gl.SliceLayout(1, block))
    for i in gl.static_range(4):
        _gather_part(q + base * X, lane * X, c + i * PART, q_c.index(i))
        _gather_part(grad_out + base * LATENT, lane * LATENT, c + i * PART, g.index(i))
        at = base * LATENT + gl.expand_dims(lane * LATENT, 1) + gl.expand_dims(c + i * PART, 0)
        delta += gl.sum(gl.load(out + at).to(gl.float32) * gl.load(grad_out + at).to(gl.float32), 1)
    _gather_part(q + base * X, lane_r * X, r, q_r)
    async_copy.commit_group()
    delta = gl.convert_layout(delta, head_axis)
    head = gl.arange(0, HEADS, layout=head_axis)
    lse2 = gl.load(lse + base + head) * LOG2E
    lse2 = gl.where(lse2 == float("-inf"), 0.0, lse2)

    index_row = flat + row * K
    s = gl.load(index_row + lane, mask=lane < K, other=-1)
    s_r = gl.load(index_row + lane_r, mask=lane_r < K, other=-1)
    offset = gl.maximum(s, 0).to(gl.int64) * X
    for i in gl.static_range(4):
        _gather_part(kv, offset, c + i * PART, k_c.index(i))
        if i == 3:
            _gather_part(kv, gl.maximum(s_r, 0).to(gl.int64) * X, r, k_r)
        async_copy.commit_group()

    zero = gl.full([HEADS, TILE], 0.0, gl.float32, layout=score_layout)
    dq0 = gl.full([HEADS, PART], 0.0, gl.float32, layout=part_layout)
    dq1 = gl.full([HEADS, PART], 0.0, gl.float32, layout=part_layout)
    dq2 = gl.full([HEADS, PART], 0.0, gl.float32, layout=part_layout)
    dq3 = gl.full([HEADS, PART], 0.0, gl.float32, layout=part_layout)
    dq_r = gl.full([HEADS, ROTATED], 0.0, gl.float32, layout=score_layout)
    for k0 in range(0, K, TILE):
        s_s = gl.load(index_row + k0 + lane_s, mask=k0 + lane_s < K, other=-1)
        s = gl.load(index_row + k0 + TILE + lane, mask=k0 + TILE + lane < K, other=-1)
        s_r = gl.load(index_row + k0 + TILE + lane_r, mask=k0 + TILE + lane_r < K, other=-1)
        score = zero
        dp = zero
        for i in gl.static_range(4):
            async_copy.wait_group(3 - i)
            fence_async_shared()
            gl.thread_barrier()
            score = warpgroup_mma(
                q_c.index(i), k_c.index(i).permute((1, 0)), score, use_acc=i > 0, is_async=True
            )
            dp = warpgroup_mma(g.index(i), k_c.index(i).permute((1, 0)), dp, use_acc=i > 0, is_async=True)
        score = warpgroup_mma(q_r, k_r.permute((1, 0)), score, is_async=True)
        score, dp = warpgroup_mma_wait(0, deps=[score, dp])
        p = gl.exp2(score * (scale * LOG2E) - gl.expand_dims(lse2, 1))
        p = gl.where(gl.expand_dims(s_s, 0) >= 0, p, 0.0)
        ds = (p * (dp - gl.expand_dims(delta, 1)) * scale).to(dtype)
        place = (local * 2 * N + head0) * K + gl.expand_dims(head, 1) * K + gl.expand_dims(k0 + lane_s, 0)
        inside = gl.expand_dims(k0 + lane_s, 0) < K
        gl.store(weights + place, ds, mask=inside)
        gl.store(weights + place + N * K, p.to(dtype), mask=inside)
        ds_a = gl.convert_layout(ds, gl.DotOperandLayout(0, part_layout, 2))
        ds_b = gl.convert_layout(ds, gl.DotOperandLayout(0, score_layout, 2))
        dq0 = warpgroup_mma(ds_a, k_c.index(0), dq0, is_async=True)
        dq1 = warpgroup_mma(ds_a, k_c.index(1), dq1, is_async=True)
        dq2 = warpgroup_mma(ds_a, k_c.index(2), dq2, is_async=True)
        dq3 = warpgroup_mma(ds_a, k_c.index(3), dq3, is_async=True)
        dq_r = warpgroup_mma(ds_b, k_r, dq_r, is_async=True)
        offset = gl.maximum(s, 0).to(gl.int64) * X
        dq0 = warpgroup_mma_wait(4, deps=[dq0])
        gl.thread_barrier()  # both warpgroups are through with the quarter
        _gather_part(kv, offset, c, k_c.index(0))
        async_copy.commit_group()
        dq1 = warpgroup_mma_wait(3, deps=[dq1])
        gl.thread_barrier()
        _gather_part(kv, offset, c + PART, k_c.index(1))
        async_copy.commit_group()
        dq2 = warpgroup_mma_wait(2, deps=[dq2])
        gl.thread_barrier()
        _gather_part(kv, offset, c + 2 * PART, k_c.index(2))
        async_copy.commit_group()
        dq3, dq_r = warpgroup_mma_wait(0, deps=[dq3, dq_r])
        gl.thread_barrier()
        _gather_part(kv, offset, c + 3 * PART, k_c.index(3))
        _gather_part(kv, gl.maximum(s_r, 0).to(gl.int64) * X, r, k_r)
        async_copy.commit_group()
    async_copy.wait_group(0)

    head_p = gl.expand_dims(gl.arange(0, HEADS, layout=gl.SliceLayout(1, part_layout)), 1) * X
    column = gl.expand_dims(gl.arange(0, PART, layout=gl.SliceLayout(0, part_layout)), 0)
    gl.store(dq + base * X + head_p + column, dq0.to(dtype))
    gl.store(dq + base * X + head_p + column + PART, dq1.to(dtype))
    gl.store(dq + base * X + head_p + column + 2 * PART, dq2.to(dtype))
    gl.store(dq + base * X + head_p + column + 3 * PART, dq3.to(dtype))
    rotated = gl.expand_dims(head, 1) * X + LATENT + gl.expand_dims(lane_s, 0)
    gl.store(dq + base * X + rotated, dq_r.to(dtype))


def launch_query_gradient(q, kv, flat, grad_out, out, lse, dq, weights, row, count, scale: float) -> None:
    """Fills ``count`` rows of dq and of weights (chunk, 2N, K), from row ``row`` on; see
    ``backward.gradients``.
    """
    N, K = q.shape[2], flat.shape[-1]
    _query_gradient[(count, N // HEADS.value)](
        q, kv, flat, grad_out, out, lse, dq, weights, row, scale, N, K, num_warps=WARPS
    )
