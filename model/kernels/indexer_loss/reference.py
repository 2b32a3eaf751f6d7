"""Training losses of the lightning indexer (DeepSeek-V3.2 eq. 3 and 4): KL of the main attention to the
indexer's softmax.

The target is the mean over heads of the main attention's probabilities; it carries no gradient. Only the
indexer's tensors get one. Queries are worked off in tiles, and each tile's gradient is taken at once, so that
nothing of size T x S outlives its tile.

B batch, T queries, S keys, N heads, H qk head dim, I indexer heads, J indexer dim, K top-k.
"""

from collections.abc import Callable, Iterator

import torch

from model.kernels.indexer_topk.reference import indexer_scores, visible_mask
from model.kernels.sparse_mla.reference import mean_weight

QUERY_TILE = 128


def dense_indexer_loss(
    q_BTNH: torch.Tensor,
    k_BSNH: torch.Tensor,
    scale: float,
    iq_BTIJ: torch.Tensor,
    ik_BSJ: torch.Tensor,
    iw_BTI: torch.Tensor,
    start_BT: torch.Tensor,
    stop_BT: torch.Tensor,
) -> torch.Tensor:
    """Mean over queries of ``KL(p_t || softmax(I_t))`` over all visible keys (indexer warm-up).

    Args:
        q_BTNH, k_BSNH: the main attention's queries and keys per head, rotated; no gradient.
        scale: factor of the main attention's scores.
        iq_BTIJ, ik_BSJ, iw_BTI: the indexer's queries, keys and head weights; these get gradients.
        start_BT, stop_BT: int32; query t sees the keys ``start <= s < stop``. A query that sees none is left
            out of the mean.

    Returns:
        scalar, float32 (float64 for float64 inputs), in nats; 0 if no query sees a key.
    """
    dtype = torch.promote_types(q_BTNH.dtype, torch.float32)
    q_BNTH, k_BNHS = q_BTNH.detach().transpose(1, 2), k_BSNH.detach().permute(0, 2, 3, 1)

    def tile(rows: slice, iq: torch.Tensor, ik: torch.Tensor, iw: torch.Tensor) -> torch.Tensor:
        keys = int(stop_BT[:, rows].max())  # none of the tile's queries sees a later one
        visible = visible_mask(start_BT[:, rows], stop_BT[:, rows], keys)
        with torch.no_grad():
            score = (q_BNTH[:, :, rows] @ k_BNHS[..., :keys]).to(dtype) * scale
            target = mean_weight(score, visible)
        return _kl(target, indexer_scores(iq, ik[:, :keys], iw), visible)

    queries = int((stop_BT > start_BT).sum())
    return _TiledLoss.apply(iq_BTIJ, ik_BSJ, iw_BTI, tile, queries)


def sparse_indexer_loss(
    target_BTK: torch.Tensor,
    iq_BTIJ: torch.Tensor,
    ik_BSJ: torch.Tensor,
    iw_BTI: torch.Tensor,
    index_BTK: torch.Tensor,
) -> torch.Tensor:
    """Mean over queries of ``KL(p_t || softmax(I_t))`` inside each query's selected keys (sparse stage).

    Args:
        target_BTK: p, the main attention's mean over heads as ``sparse_mla`` or ``head_mean`` gives it for
            the same selection: float32 (float64), 0 at negative entries; no gradient.
        iq_BTIJ, ik_BSJ, iw_BTI: the indexer's queries, keys and head weights; these get gradients.
        index_BTK: int32 selected keys; negative entries select nothing. A query without any is left out of
            the mean.

    Returns:
        scalar, float32 (float64 for float64 inputs), in nats; 0 if no query selects a key.
    """
    target_BTK = target_BTK.detach()

    def tile(rows: slice, iq: torch.Tensor, ik: torch.Tensor, iw: torch.Tensor) -> torch.Tensor:
        index = index_BTK[:, rows]
        keys = int(index.max()) + 1  # none of the tile's queries selects a later one
        score = indexer_scores(iq, ik[:, : max(keys, 1)], iw).gather(-1, index.clamp(min=0).long())
        return _kl(target_BTK[:, rows], score, index >= 0)

    queries = int((index_BTK >= 0).any(-1).sum())
    return _TiledLoss.apply(iq_BTIJ, ik_BSJ, iw_BTI, tile, queries)


def _kl(target_BTS: torch.Tensor, score_BTS: torch.Tensor, visible_BTS: torch.Tensor) -> torch.Tensor:
    """Sum over queries of KL(target || softmax of the visible scores). ``0 log 0`` counts as 0."""
    # A finite floor instead of -inf: hidden keys have target 0, and 0 * -inf would be NaN.
    masked = score_BTS.masked_fill(~visible_BTS, torch.finfo(score_BTS.dtype).min / 2)
    log_q = masked.log_softmax(-1).masked_fill(~visible_BTS, 0.0)
    return torch.xlogy(target_BTS, target_BTS).sum() - (target_BTS * log_q).sum()


class _TiledLoss(torch.autograd.Function):
    """Sum of ``tile`` over query tiles, divided by ``queries``. The gradient is taken tile by tile in the
    forward pass.
    """

    @staticmethod
    def forward(ctx, iq_BTIJ, ik_BSJ, iw_BTI, tile: Callable, queries: int) -> torch.Tensor:
        wanted = any(ctx.needs_input_grad[:3])
        inputs = (iq_BTIJ.detach(), ik_BSJ.detach(), iw_BTI.detach())
        grads = [torch.zeros_like(x) for x in inputs] if wanted else []
        total = torch.zeros(
            (), dtype=torch.promote_types(iq_BTIJ.dtype, torch.float32), device=iq_BTIJ.device
        )
        for rows in _tiles(iq_BTIJ.shape[1]):
            iq, ik, iw = inputs[0][:, rows], inputs[1], inputs[2][:, rows]
            if not wanted:
                total += tile(rows, iq, ik, iw)
                continue
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (iq, ik, iw)]
                loss = tile(rows, *leaves)
            piece = torch.autograd.grad(loss, leaves)
            grads[0][:, rows] += piece[0]
            grads[1] += piece[1]
            grads[2][:, rows] += piece[2]
            total += loss.detach()
        ctx.save_for_backward(*grads)
        ctx.queries = max(queries, 1)
        return total / ctx.queries

    @staticmethod
    def backward(ctx, grad_loss):
        factor = grad_loss / ctx.queries
        return *(g * factor.to(g.dtype) for g in ctx.saved_tensors), None, None


def _tiles(queries: int) -> Iterator[slice]:
    return (slice(t, t + QUERY_TILE) for t in range(0, queries, QUERY_TILE))
