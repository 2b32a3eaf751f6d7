"""Mean over heads of the weights of sparse MLA, the indexer loss's target. Letters as in ``triton.py``."""

import torch
import triton
import triton.language as tl

from model.kernels.sparse_mla.hopper_forward import TILE
from model.kernels.sparse_mla.rows import LOG2E, load_keys, load_query, low_part

_INTERPRET = triton.knobs.runtime.interpret
# Tiles of weights that a program reads at once.
WIDE = tl.constexpr(4)


def mean_of_weights(weights, top, lse, mean) -> None:
    """Fills mean (rows, K) from what ``hopper_forward.launch`` writes out and lse (rows, N); N is a multiple
    of 64.
    """
    rows, N, K = weights.shape
    tiles = triton.cdiv(K, TILE.value)
    _weights_kernel[(rows, triton.cdiv(tiles, WIDE.value))](weights, top, lse, mean, N, K, tiles, num_warps=8)


@triton.jit
def _weights_kernel(weights, top, lse, mean, N, K, tiles):
    """One row, WIDE tiles."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    key = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    total = tl.zeros([WIDE, TILE], tl.float32)
    for n in range(0, N, 64):
        head = n + tl.arange(0, 64)
        log = tl.load(lse + row * N + head) * LOG2E
        place = top + (row * tiles + tile)[None, :] * N + head[:, None]
        most = tl.load(place, mask=(tile < tiles)[None, :], other=0.0)
        # Of a query without keys both are -inf.
        factor = tl.where((log == float("-inf"))[:, None], 0.0, tl.exp2(most - log[:, None]))
        place = weights + ((row * N + head) * K)[:, None, None] + key[None, :, :]
        weight = tl.load(place, mask=(key < K)[None, :, :], other=0.0).to(tl.float32)
        total += tl.sum(weight * factor[:, :, None], 0)
    tl.store(mean + row * K + key, total / N, mask=key < K)


def mean_of_scores(q, kv, index, scale: float, lse) -> torch.Tensor:
    """mean_BTK by computing all scores anew, given lse_BTN."""
    B, T, N, X = q.shape
    K = index.shape[-1]
    mean = torch.zeros(B, T, K, dtype=torch.float32, device=q.device)
    if mean.numel() == 0 or N == 0:
        return mean
    low = low_part(X)
    block_n = max(16, min(64, triton.next_power_of_2(N)))
    warps, stages = (4, 2) if block_n < 64 else (8, 1)  # 64 heads and one key do not fit in two stages
    _scores_kernel[(B * T,)](
        q, kv, index, lse, mean, scale * LOG2E.value, T, kv.shape[1], N, K, C=low, R=X - low,
        BLOCK_C=max(16, low), BLOCK_R=max(16, triton.next_power_of_2(X - low)), BLOCK_N=block_n, BLOCK_K=64,
        UPCAST=_INTERPRET, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return mean


@triton.jit
def _scores_kernel(
    q, kv, index, lse, mean, scale_log2, T, S, N, K, C: tl.constexpr, R: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    base = (row // T).to(tl.int64) * S
    index += row.to(tl.int64) * K
    mean += row.to(tl.int64) * K
    for n in range(0, N, BLOCK_N):
        head = n + tl.arange(0, BLOCK_N)
        q_c, q_r = load_query(q, row, head, N, C, R, BLOCK_C, BLOCK_R)
        if UPCAST:
            q_c = q_c.to(tl.float32)
            q_r = q_r.to(tl.float32)
        log = tl.load(lse + row.to(tl.int64) * N + head, mask=head < N, other=0.0) * LOG2E
        log = tl.where(log == float("-inf"), 0.0, log)
        for k in range(0, K, BLOCK_K):
            key = k + tl.arange(0, BLOCK_K)
            s = tl.load(index + key, mask=key < K, other=-1)
            k_c, k_r = load_keys(kv, s, base, C, R, BLOCK_C, BLOCK_R)
            if UPCAST:
                k_c = k_c.to(tl.float32)
                k_r = k_r.to(tl.float32)
            score = tl.dot(q_c, tl.trans(k_c), input_precision="ieee")
            if R > 0:
                score = tl.dot(q_r, tl.trans(k_r), score, input_precision="ieee")
            weight = tl.exp2(score * scale_log2 - log[:, None])
            weight = tl.where((s >= 0)[None, :] & (head < N)[:, None], weight, 0.0)
            # Blocks of heads add up: what a program stored it reads again.
            total = tl.load(mean + key, mask=key < K, other=0.0)
            tl.store(mean + key, total + tl.sum(weight, 0) / N, mask=key < K)
