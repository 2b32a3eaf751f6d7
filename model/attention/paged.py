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

        def batched(x: torch.Tensor, group: Group = group) -> torch.Tensor:
            return x[0, group.tokens].unflatten(0, (group.batch, -1))

        index_BTK = None
        if index_inputs and group.view.widest > options.top_k:
            keys_BSJ = view.cache.index_keys[layer][group.row_BS]
            index_BTK = attention.select(
                group.view, options, (batched(index_inputs[0]), keys_BSJ, batched(index_inputs[2]))
            )
        elif options.mode == "random":
            index_BTK = attention.select(group.view, options, None)
        out_BTNV = _attend(attention, batched(q_1MNH), view.cache.kv[layer], group, index_BTK, options)
        pieces.append(out_BTNV.flatten(0, 1))
    return (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).unsqueeze(0)


def _attend(
    attention: "MLA", q_BTNH, pool_PX: torch.Tensor, group: Group, index_BTK, options: "AttentionOptions"
) -> torch.Tensor:
    view = group.view.window(options.top_k) if options.mode == "window" else group.view
    few = q_BTNH.shape[1] <= FEW_QUERIES
    if index_BTK is None:
        if few and not q_BTNH.is_cuda:
            return attention.values(_all_rows(attention, attention.absorb(q_BTNH), pool_PX, group, view))
        if not few:
            mask = None if view.causal else view.mask_B1TS
            return attention.expanded(q_BTNH, pool_PX[group.row_BS], mask)
        rows_BTK = group.row_BTS if view is group.view else group.rows_of(view)
    elif few or q_BTNH.is_cuda or view.keys > MASKED_DENSE_KEYS:
        rows_BTK = group.select(index_BTK)
    else:
        return attention.expanded(q_BTNH, pool_PX[group.row_BS], selection_mask(index_BTK, view.keys))
    # One batch entry: the whole pool, with physical rows.
    flat_q, flat_rows = attention.absorb(q_BTNH).flatten(0, 1), rows_BTK.flatten(0, 1)
    context, _ = sparse_mla(
        flat_q.unsqueeze(0), pool_PX.unsqueeze(0), flat_rows.unsqueeze(0), attention.scale, attention.latent
    )
    return attention.values(context.view(*q_BTNH.shape[:3], attention.latent))


def _all_rows(attention: "MLA", q_BTNX, pool_PX, group: Group, view) -> torch.Tensor:
    """Latent context (B, T, N, C) over all visible keys: rows gathered once for all heads and queries."""
    B, T, N, X = q_BTNX.shape
    kv_BSX = pool_PX.index_select(0, group.row_BS.flatten()).view(B, -1, X)
    dtype = torch.promote_types(q_BTNX.dtype, torch.float32)
    score = (q_BTNX.reshape(B, T * N, X) @ kv_BSX.transpose(1, 2)).to(dtype).mul_(attention.scale)
    score = score.view(B, T, N, -1).masked_fill_(~view.mask_B1TS.transpose(1, 2), float("-inf"))
    weight = score.softmax(-1).to(kv_BSX.dtype).view(B, T * N, -1)
    return (weight @ kv_BSX[..., : attention.latent]).view(B, T, N, -1)
