"""Lightning indexer: score every visible key for every query and keep the best (DeepSeek-V3.2 eq. 1; paper
section 2.1.1).

B batch, T queries, S keys, I indexer heads, J indexer dim, K top-k.
"""

import torch
import torch.nn.functional as F

# Queries handled at once: bounds the (B, tile, I, S) product, and lets a tile skip the keys behind it.
QUERY_TILE = 128


def indexer_scores(q_BTIJ: torch.Tensor, k_BSJ: torch.Tensor, weight_BTI: torch.Tensor) -> torch.Tensor:
    """Score of every key for every query: ``sum_i weight_i * relu(q_i . k)``; differentiable.

    The constants ``I**-0.5 * J**-0.5`` are the caller's: they belong in ``weight_BTI``.

    Args:
        q_BTIJ: indexer queries, any float dtype.
        k_BSJ: indexer keys, one for all heads, same dtype.
        weight_BTI: weight of each head for each query.

    Returns:
        score_BTS, float32 (float64 for float64 inputs), nothing masked.
    """
    dtype = torch.promote_types(q_BTIJ.dtype, torch.float32)
    B, T, I, J = q_BTIJ.shape
    dot_BTIS = (q_BTIJ.to(dtype).reshape(B, T * I, J) @ k_BSJ.to(dtype).transpose(1, 2)).view(B, T, I, -1)
    return (weight_BTI.to(dtype).unsqueeze(2) @ dot_BTIS.relu()).squeeze(2)


def visible_mask(start_BT: torch.Tensor, stop_BT: torch.Tensor, keys: int) -> torch.Tensor:
    """bool (B, T, keys): True where the query sees the key, ``start <= key < stop``."""
    key_S = torch.arange(keys, device=start_BT.device, dtype=start_BT.dtype)
    return (key_S >= start_BT.unsqueeze(-1)) & (key_S < stop_BT.unsqueeze(-1))


@torch.no_grad()
def indexer_topk(
    q_BTIJ: torch.Tensor,
    k_BSJ: torch.Tensor,
    weight_BTI: torch.Tensor,
    start_BT: torch.Tensor,
    stop_BT: torch.Tensor,
    top_k: int,
    *,
    order: str = "score",
    row_BS: torch.Tensor | None = None,
) -> torch.Tensor:
    """The ``top_k`` visible keys of highest score for every query. No gradient.

    Args:
        q_BTIJ, k_BSJ, weight_BTI: as in ``indexer_scores``.
        start_BT, stop_BT: int32; query t sees the keys ``start <= s < stop`` (``0 <= start <= stop <= S``).
        top_k: K, at least 1; may exceed S.
        order: "score", or "index" for ascending key index, or "any" for what is quickest here.
        row_BS: integers; with them the keys are a pool (rows, J), as a paged cache keeps them, and key s of
            batch entry b is its row ``row_BS[b, s]``.

    Returns:
        index_BTK int32: key indices, by ``order`` "score" in descending order of score, equal scores in
        ascending order of key index, then -1 where fewer than K keys are visible; under "any" also the place
        of -1 is open. K is exactly ``top_k``.
    """
    if order not in ("score", "index", "any"):
        raise ValueError(f"order {order!r} must be 'score', 'index' or 'any'")
    if row_BS is not None:
        k_BSJ = k_BSJ[row_BS]
    tiles = []
    for t in range(0, start_BT.shape[1], QUERY_TILE):
        rows = slice(t, t + QUERY_TILE)
        keys = int(stop_BT[:, rows].max())
        score = indexer_scores(q_BTIJ[:, rows], k_BSJ[:, :keys], weight_BTI[:, rows])
        hidden = ~visible_mask(start_BT[:, rows], stop_BT[:, rows], keys)
        rank = _rank(score.masked_fill_(hidden, float("-inf")))
        best = rank.topk(min(top_k, keys), dim=-1, sorted=order == "score").indices
        best = best.masked_fill_(hidden.gather(-1, best), -1).int()
        tiles.append(F.pad(best, (0, top_k - best.shape[-1]), value=-1))
    index_BTK = torch.cat(tiles, 1)
    if order == "index":
        absent = torch.iinfo(torch.int32).max  # sorts behind every key
        index_BTK = index_BTK.masked_fill(index_BTK < 0, absent).sort(-1).values
        index_BTK = index_BTK.masked_fill(index_BTK == absent, -1)
    return index_BTK


def _rank(score: torch.Tensor) -> torch.Tensor:
    """int64 that orders keys by float32 score and, among equal scores, the lower key index first.

    Zeros are common (every head's ReLU off), so ties are real, and ``topk`` alone leaves their order open.
    """
    bits = (score.float() + 0.0).view(torch.int32)  # adding 0 makes -0 a 0
    bits ^= (bits >> 31) & 0x7FFFFFFF  # integers in the floats' order
    keys = score.shape[-1]
    return (bits.long() << 32).bitwise_or_(torch.arange(keys - 1, -1, -1, device=score.device))
