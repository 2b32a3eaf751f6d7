"""Attention over selected keys in MLA's absorbed form: one latent key-value row serves all heads (paper
section 2.1.1).

B batch, T queries, S keys, N heads, K selected keys, C kv latent, R rope dim, X = C + R.
"""

from collections.abc import Callable

import torch

QUERY_TILE = 128


def sparse_mla(
    q_BTNX: torch.Tensor,
    kv_BSX: torch.Tensor,
    index_BTK: torch.Tensor,
    scale: float,
    latent: int,
    *,
    again: tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]] | None = None,
    mean: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Softmax attention of every query over its own selected keys. Gradients flow to ``q_BTNX`` and
    ``kv_BSX``.

    Args:
        q_BTNX: queries with W_UK absorbed (first C features) and the rotated part (last R).
        kv_BSX: normalised kv latent (first C features) and the rotated shared key (last R), same dtype.
        index_BTK: int32 key indices into S, each at most once per query; negative entries select nothing.
        scale: factor of the scores before the softmax.
        latent: C; the values are ``kv_BSX[..., :latent]``.
        again: a function and tensors that make the queries once more. An implementation may then keep those
            tensors for the backward pass in place of the queries, the largest tensor here.
        mean: whether the third result is wanted.

    Returns:
        out_BTNC in q's dtype: the attention-weighted latent, zero for a query that selects nothing;
        lse_BTN, float32 (float64 for float64 inputs): natural log-sum-exp of the scaled scores, -inf for such
        a query;
        mean_BTK, of lse's dtype: the mean over heads of each selected key's weight, 0 at negative entries;
        None unless asked for. Neither of the last two carries a gradient.
    """
    dtype = torch.promote_types(q_BTNX.dtype, torch.float32)
    absent_BT1K = (index_BTK < 0).unsqueeze(2)
    selected_BTKX = gather_rows(kv_BSX, index_BTK)
    score_BTNK = (q_BTNX @ selected_BTKX.transpose(2, 3)).to(dtype) * scale
    score_BTNK = score_BTNK.masked_fill(absent_BT1K, float("-inf"))
    lse_BTN = score_BTNK.detach().logsumexp(-1)
    # A query without keys has only -inf scores: its softmax is NaN, and zero is meant.
    weight_BTNK = score_BTNK.softmax(-1).masked_fill(absent_BT1K, 0.0)
    out_BTNC = weight_BTNK.to(q_BTNX.dtype) @ selected_BTKX[..., :latent]
    return out_BTNC, lse_BTN, weight_BTNK.detach().mean(2) if mean else None


@torch.no_grad()
def head_mean(
    q_BTNX: torch.Tensor,
    kv_BSX: torch.Tensor,
    index_BTK: torch.Tensor,
    scale: float,
    *,
    lse_BTN: torch.Tensor | None = None,
) -> torch.Tensor:
    """The third result of ``sparse_mla`` alone, where attention was computed another way: mean_BTK, without a
    gradient. Queries are worked off in tiles, so that nothing of size T x K x X outlives its tile.

    Args:
        q_BTNX, kv_BSX, index_BTK, scale: as in ``sparse_mla``.
        lse_BTN: its second result for the same inputs, where it is known; may save work.
    """
    dtype = torch.promote_types(q_BTNX.dtype, torch.float32)
    mean_BTK = torch.empty(index_BTK.shape, dtype=dtype, device=q_BTNX.device)
    for t in range(0, index_BTK.shape[1], QUERY_TILE):
        rows = slice(t, t + QUERY_TILE)
        index = index_BTK[:, rows]
        score_BTNK = (q_BTNX[:, rows] @ gather_rows(kv_BSX, index).transpose(2, 3)).to(dtype) * scale
        lse_BNT = None if lse_BTN is None else lse_BTN[:, rows].transpose(1, 2)
        mean_BTK[:, rows] = mean_weight(score_BTNK.transpose(1, 2), index >= 0, lse_BNT)
    return mean_BTK


def mean_weight(
    score_BNTS: torch.Tensor, visible_BTS: torch.Tensor, lse_BNT: torch.Tensor | None = None
) -> torch.Tensor:
    """Mean over heads of the masked softmax (B, T, S): it sums to one over keys, or is zero where nothing is
    visible.
    """
    hidden_BTS = ~visible_BTS
    masked = score_BNTS.masked_fill(hidden_BTS.unsqueeze(1), float("-inf"))
    each = masked.softmax(-1) if lse_BNT is None else (masked - lse_BNT.unsqueeze(-1)).exp()
    return each.mean(1).masked_fill(hidden_BTS, 0.0)


def gather_rows(row_BSX: torch.Tensor, index_BTK: torch.Tensor) -> torch.Tensor:
    """(B, T, K, X): ``row_BSX[b, index_BTK[b, t, k]]``; row 0 stands in for negative entries."""
    B, S, X = row_BSX.shape
    first_B11 = torch.arange(0, B * S, S, device=row_BSX.device).view(-1, 1, 1)
    flat_BTK = index_BTK.clamp(min=0).long() + first_B11
    return row_BSX.reshape(B * S, X).index_select(0, flat_BTK.flatten()).view(*index_BTK.shape, X)
