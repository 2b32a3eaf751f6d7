"""Sparse MLA on CUDA, forward: the contract is ``reference.sparse_mla``; gradients are in ``backward.py``.

One program attends for one query and a block of heads: it gathers the selected latent rows tile by tile and
uses each tile twice, as keys and as values. Few queries (decoding) are spread over the card by cutting the
selected keys into splits, whose partial results a second kernel merges in a fixed order.

For a paged cache pass the pages as one batch entry ``(1, pages * page size, X)`` and physical indices.

B batch, T queries, S keys, N heads, K selected keys, C kv latent, R rope dim, X = C + R.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from model.kernels.sparse_mla.hopper import FILL, LATENT, fits
from model.kernels.sparse_mla.hopper_forward import TILE, launch
from model.kernels.sparse_mla.mean import mean_of_scores, mean_of_weights
from model.kernels.sparse_mla.rows import LN2, LOG2E, load_keys, load_query, low_part

_INTERPRET = triton.knobs.runtime.interpret
# Keys of a tile, warps and stages of the plain kernel, for less than 64 heads and from there on.
FEW_HEADS, MANY_HEADS = (64, 4, 2), (64, 8, 2)
# Bytes of weights held at once while their mean over heads is wanted; one wave of programs at least.
WORKSPACE = 1 << 29


def sparse_mla(
    q_BTNX: torch.Tensor,
    kv_BSX: torch.Tensor,
    index_BTK: torch.Tensor,
    scale: float,
    latent: int,
    *,
    again: tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]] | None = None,
    mean: bool = False,
    deterministic: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """As ``reference.sparse_mla``; sums and the softmax are in float32.

    Args:
        deterministic: sum the gradient of ``kv_BSX`` in a fixed order. False adds with atomics instead:
            quicker and with little workspace, but the last bits change between runs. None: as
            ``torch.use_deterministic_algorithms`` says.
    """
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    make, tensors = again or (None, ())
    return _SparseMLA.apply(q_BTNX, kv_BSX, index_BTK, scale, latent, deterministic, mean, make, *tensors)


def head_mean(q_BTNX, kv_BSX, index_BTK, scale: float, *, lse_BTN=None) -> torch.Tensor:
    """As ``reference.head_mean``."""
    q, kv, index = (x.detach().contiguous() for x in (q_BTNX, kv_BSX, index_BTK.int()))
    if fits(q, LATENT.value) and index.shape[-1] % 8 == 0:
        return attend(q, kv, index, scale, LATENT.value, mean=True)[2]
    if lse_BTN is None:
        lse_BTN = attend(q, kv, index, scale, low_part(q.shape[-1]))[1]
    return mean_of_scores(q, kv, index, scale, lse_BTN)


class _SparseMLA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, index, scale, latent, deterministic, mean, make, *tensors):
        q, kv, index = q.contiguous(), kv.contiguous(), index.int().contiguous()
        out, lse, average = attend(q, kv, index, scale, latent, mean=mean)
        ctx.save_for_backward(kv, index, out, lse, *(tensors if make else (q,)))
        ctx.make = make
        ctx.scale, ctx.latent, ctx.deterministic = scale, latent, deterministic
        ctx.mark_non_differentiable(*(x for x in (lse, average) if x is not None))
        return out, lse, average

    @staticmethod
    def backward(ctx, grad_out, *_):
        from model.kernels.sparse_mla.backward import gradients

        kv, index, out, lse, *rest = ctx.saved_tensors
        q = ctx.make(*rest).contiguous() if ctx.make else rest[0]
        dq, dkv = gradients(
            q, kv, index, out, lse, grad_out.contiguous(), ctx.scale, ctx.latent, ctx.deterministic
        )
        return dq, dkv, *[None] * (len(ctx.needs_input_grad) - 2)


def attend(q, kv, index, scale: float, latent: int, *, splits=None, hopper=None, mean=False):
    """(out_BTNC, lse_BTN, mean_BTK or None) without autograd; ``splits`` cuts the keys of each query (None:
    by the query count), ``hopper`` says whether to use the kernel for that chip (None: where it fits).
    """
    B, T, N, X = q.shape
    K, rows = index.shape[-1], B * T
    out = torch.empty(B, T, N, latent, dtype=q.dtype, device=q.device)
    lse = torch.empty(B, T, N, dtype=torch.float32, device=q.device)
    if rows == 0 or N == 0:
        return out, lse, (torch.zeros(B, T, K, dtype=torch.float32, device=q.device) if mean else None)
    hopper = K > 0 and fits(q, latent) if hopper is None else hopper
    export = mean and hopper and K % 8 == 0
    average = torch.empty(rows, K, dtype=torch.float32, device=q.device) if export else None
    for row0, count, cuts in _parts(rows, N, K, splits, hopper, export):
        part = slice(row0, row0 + count)
        own = out.view(rows, N, latent)[part], lse.view(rows, N)[part], average[part] if export else None
        _attend_rows(q, kv, index, *own, scale, row0, count, cuts, hopper)
    if mean and not export:
        return out, lse, mean_of_scores(q, kv, index, scale, lse)
    return out, lse, average.view(B, T, K) if export else None


def _parts(rows: int, N: int, K: int, splits: int | None, hopper: bool, export: bool):
    """First row, rows and splits of each launch. Of many queries the last would have the card almost to
    themselves: their keys are cut too. Weights that are written out bound the others.
    """
    blocks = triton.cdiv(N, max(16, min(64, triton.next_power_of_2(N))))
    if splits is None:
        splits = _splits(rows * blocks, K)
    last = rows * blocks % FILL // blocks if hopper and splits == 1 and rows * blocks > FILL else 0
    last = last if _splits(last * blocks, K) > 1 else 0
    most = max(1, WORKSPACE // (2 * N * K) // FILL) * FILL if export else rows
    for row in range(0, rows - last, most):
        yield row, min(most, rows - last - row), splits
    if last:
        yield rows - last, last, _splits(last * blocks, K)


def _splits(programs: int, K: int) -> int:
    return max(1, min(FILL // max(programs, 1), triton.cdiv(K, 128)))


def _attend_rows(
    q, kv, index, out, lse, average, scale: float, row0: int, rows: int, splits: int, hopper: bool
) -> None:
    """Fills out (rows, N, C), lse (rows, N) and, unless it is None, average (rows, K) for ``rows`` queries
    from ``row0`` on; for the plain kernel that is all of them.
    """
    N, X, K, latent = q.shape[2], q.shape[3], index.shape[-1], out.shape[-1]
    part, part_lse = out, lse
    if splits > 1:
        part = torch.empty(splits, rows, N, latent, dtype=torch.float32, device=q.device)
        part_lse = torch.empty(splits, rows, N, dtype=torch.float32, device=q.device)
    if hopper:
        weights = top = None
        if average is not None:
            weights = torch.empty(rows, N, K, dtype=q.dtype, device=q.device)
            top = torch.empty(rows, triton.cdiv(K, TILE.value), N, dtype=torch.float32, device=q.device)
        launch(q, kv, index, part, part_lse, scale, splits, row0, rows, weights, top)
    else:
        block_n = max(16, min(64, triton.next_power_of_2(N)))
        block_c, block_r = triton.next_power_of_2(latent), max(16, triton.next_power_of_2(X - latent))
        tile, warps, stages = FEW_HEADS if block_n < 64 else MANY_HEADS
        _forward_kernel[(rows, triton.cdiv(N, block_n), splits)](
            q, kv, index, part, part_lse, scale * LOG2E.value, q.shape[1], kv.shape[1], N, K, rows, splits,
            C=latent, R=X - latent, BLOCK_C=block_c, BLOCK_R=block_r, BLOCK_N=block_n, BLOCK_K=tile,
            UPCAST=_INTERPRET, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    if splits > 1:
        _merge_kernel[(rows, N)](
            part, part_lse, out, lse, rows, N, splits,
            C=latent, BLOCK_C=triton.next_power_of_2(latent), num_warps=4,
        )  # fmt: skip
    if average is not None:
        mean_of_weights(weights, top, lse, average)


# Passes of an engine differ in these, and all requests wait while the kernel is compiled for another one (2 s
# in bfloat16, 17 in float32). K stays: loads of indices are wide where it is a multiple of 16.
@triton.jit(do_not_specialize=["T", "S", "rows", "splits"])
def _forward_kernel(
    q, kv, index, out, lse, scale_log2, T, S, N, K, rows, splits,
    C: tl.constexpr, R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    q_c, q_r = load_query(q, row, head, N, C, R, BLOCK_C, BLOCK_R)
    if UPCAST:
        q_c = q_c.to(tl.float32)
        q_r = q_r.to(tl.float32)
    base_row = (row // T).to(tl.int64) * S
    index_row = index + row.to(tl.int64) * K
    blocks = tl.cdiv(tl.cdiv(K, BLOCK_K), splits)
    first = split * blocks * BLOCK_K
    last = tl.minimum(first + blocks * BLOCK_K, K)
    lane = tl.arange(0, BLOCK_K)
    m = tl.full([BLOCK_N], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_N], tl.float32)
    acc = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    for k0 in range(first, last, BLOCK_K):
        s = tl.load(index_row + k0 + lane, mask=k0 + lane < last, other=-1)
        k_c, k_r = load_keys(kv, s, base_row, C, R, BLOCK_C, BLOCK_R)
        if UPCAST:
            k_c = k_c.to(tl.float32)
            k_r = k_r.to(tl.float32)
        score = tl.dot(q_c, tl.trans(k_c), input_precision="ieee")
        score = tl.dot(q_r, tl.trans(k_r), score, input_precision="ieee") * scale_log2
        score = tl.where((s >= 0)[None, :], score, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key so far: exp2(-inf - 0) = 0
        p = tl.exp2(score - safe[:, None])
        shrink = tl.exp2(m - safe)
        norm = norm * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(k_c.dtype), k_c, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    empty = norm == 0.0
    acc = acc / tl.where(empty, 1.0, norm)[:, None]
    place = (split.to(tl.int64) * rows + row) * N + head
    c = tl.arange(0, BLOCK_C)
    tl.store(
        out + place[:, None] * C + c[None, :],
        acc.to(out.dtype.element_ty),
        mask=(head < N)[:, None] & (c < C)[None, :],
    )
    log = tl.where(empty, float("-inf"), (m + tl.log2(tl.where(empty, 1.0, norm))) * LN2)
    tl.store(lse + place, log, mask=head < N)


@triton.jit(do_not_specialize=["rows", "splits"])
def _merge_kernel(part, part_lse, out, lse, rows, N, splits, C: tl.constexpr, BLOCK_C: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * N + tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    m = tl.full([], float("-inf"), tl.float32)
    for i in range(splits):
        m = tl.maximum(m, tl.load(part_lse + tl.cast(i, tl.int64) * rows * N + place))
    safe = tl.where(m == float("-inf"), 0.0, m)
    norm = tl.zeros([], tl.float32)
    acc = tl.zeros([BLOCK_C], tl.float32)
    for i in range(splits):
        at = tl.cast(i, tl.int64) * rows * N + place
        weight = tl.exp(tl.load(part_lse + at) - safe)
        norm += weight
        acc += weight * tl.load(part + at * C + c, mask=c < C, other=0.0)
    empty = norm == 0.0
    acc = acc / tl.where(empty, 1.0, norm)
    tl.store(out + place * C + c, acc.to(out.dtype.element_ty), mask=c < C)
    tl.store(lse + place, tl.where(empty, float("-inf"), safe + tl.log(tl.where(empty, 1.0, norm))))
