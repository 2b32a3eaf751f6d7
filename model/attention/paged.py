"""Attention of new tokens over a paged latent cache: decoding, prefill in chunks, and both in one pass.

A few queries read the latent rows themselves (absorbed form), and with a selection only the selected ones.
Many queries of one sequence (prefill) share its keys, so those are gathered once and expanded as in training.

M tokens, B sequences, T queries, S keys, N heads, H qk head dim, C kv latent, X = C + rope dim, K top-k.
"""

from typing import TYPE_CHECKING

import torch

from model.attention.cache import Group, PagedView
from model.attention.selection import selection_mask
from model.kernels.registry import sparse_mla

if TYPE_CHECKING:
    from model.attention.mla import MLA, AttentionOptions

# Up to this many queries of a sequence the absorbed form is quicker than expanding all keys.
FEW_QUERIES = 8
# Up to this many keys a masked dense product is quicker on a CPU than gathering each query's keys.
MASKED_DENSE_KEYS = 1024


def attend_pages(
    attention: "MLA", q_1MNH: torch.Tensor, kv_1MX: torch.Tensor, index_inputs, options: "AttentionOptions",
    view: PagedView,
) -> torch.Tensor:  # fmt: skip
    """Store the new tokens' latents and attend; returns values (1, M, N, v)."""
    layer = attention.layer
    key_MJ = index_inputs[1][0] if index_inputs else None
    view.cache.write(layer, view.row_M, kv_1MX[0], key_MJ)
    pieces = []
    for group in view.groups:
        index_BTK = None
        if index_inputs and group.view.widest > options.top_k:
            index_BTK = _select(attention, group, index_inputs, view.cache.index_keys[layer], options)
        elif options.mode == "random":
            index_BTK = attention.select(group.view, options, None)
        pool_PX = view.cache.kv[layer]
        out_BTNV = _attend(attention, group.batched(q_1MNH), pool_PX, group, index_BTK, options)
        pieces.append(out_BTNV.flatten(0, 1))
    return (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).unsqueeze(0)


def _select(
    attention: "MLA", group: Group, index_inputs, pool_PJ: torch.Tensor, options: "AttentionOptions"
) -> torch.Tensor:
    """Selected keys (B, T, K). Few queries read the pool's rows where they lie; many share a copy of them."""
    query_BTIJ, weight_BTI = (group.batched(index_inputs[i]) for i in (0, 2))
    few = query_BTIJ.shape[1] <= FEW_QUERIES
    keys, row_BS = (pool_PJ, group.row_BS) if few else (group.gather(pool_PJ), None)
    return attention.select(group.view, options, (query_BTIJ, keys, weight_BTI), row_BS)


def _attend(
    attention: "MLA", q_BTNH, pool_PX: torch.Tensor, group: Group, index_BTK, options: "AttentionOptions"
) -> torch.Tensor:
    """Values (B, T, N, v) for one group, by the form that is quickest here."""
    view = group.view.window(options.top_k) if options.mode == "window" else group.view
    few, cuda = q_BTNH.shape[1] <= FEW_QUERIES, q_BTNH.is_cuda
    if not few and index_BTK is None:
        return attention.expanded(q_BTNH, group.gather(pool_PX), None if view.causal else view.mask_B1TS)
    if not few and not cuda and view.keys <= MASKED_DENSE_KEYS:
        return attention.expanded(q_BTNH, group.gather(pool_PX), selection_mask(index_BTK, view.keys))
    q_BTNX = attention.absorb(q_BTNH)
    if cuda:
        return attention.values(_by_kernel(attention, q_BTNX, pool_PX, group, index_BTK, view))
    if index_BTK is None:
        return attention.values(_shared_rows(attention, q_BTNX, pool_PX, group.row_BS, view.mask_B1TS))
    # Every query reads rows of its own: each is an entry with one query.
    rows_MK, index_MK = group.select(index_BTK).flatten(0, 1), index_BTK.flatten(0, 1)
    seen_M11K = (index_MK >= 0)[:, None, None]
    context = _shared_rows(attention, q_BTNX.flatten(0, 1).unsqueeze(1), pool_PX, rows_MK, seen_M11K)
    return attention.values(context.view(*q_BTNX.shape[:3], -1))


def _shared_rows(attention: "MLA", q_BTNX, pool_PX, rows_BS, seen_B1TS) -> torch.Tensor:
    """Latent context (B, T, N, C): an entry's rows are gathered once for all its queries and heads."""
    B, T, N, X = q_BTNX.shape
    kv_BSX = pool_PX.index_select(0, rows_BS.flatten()).view(B, -1, X)
    dtype = torch.promote_types(q_BTNX.dtype, torch.float32)
    score = torch.bmm(q_BTNX.reshape(B, T * N, X), kv_BSX.transpose(1, 2)).to(dtype).mul_(attention.scale)
    score = torch.where(seen_B1TS.transpose(1, 2), score.view(B, T, N, -1), float("-inf"))
    weight = score.softmax(-1).to(kv_BSX.dtype).view(B, T * N, -1)
    return torch.bmm(weight, kv_BSX[..., : attention.latent]).view(B, T, N, -1)


def _by_kernel(attention: "MLA", q_BTNX, pool_PX, group: Group, index_BTK, view) -> torch.Tensor:
    """The same from one batch entry: the whole pool, with physical rows."""
    if index_BTK is not None:
        rows_BTK = group.select(index_BTK).masked_fill(index_BTK < 0, -1).int()
    else:
        rows_BTK = group.row_BTS if view is group.view else group.rows_of(view)
    flat_q, flat_rows = q_BTNX.flatten(0, 1), rows_BTK.flatten(0, 1)
    context, _, _ = sparse_mla(
        flat_q.unsqueeze(0), pool_PX.unsqueeze(0), flat_rows.unsqueeze(0), attention.scale, attention.latent
    )
    return context.view(*q_BTNX.shape[:3], attention.latent)
