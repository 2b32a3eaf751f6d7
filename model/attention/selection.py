"""Selecting keys, and measuring what a selection holds. B batch, T queries, S keys, N heads, H qk head dim, K
top-k.
"""

import torch

from model.attention.visibility import Visibility
from model.kernels.indexer_topk.reference import visible_mask

QUERY_TILE = 128


@torch.no_grad()
def random_topk(view: Visibility, top_k: int, seed: int) -> torch.Tensor:
    """``top_k`` visible keys drawn at random for every query, int32, -1 where fewer are visible: the control
    of DSA.
    """
    visible = visible_mask(view.start_BT, view.stop_BT, view.keys)
    generator = torch.Generator(visible.device).manual_seed(seed)
    draw = torch.rand(visible.shape, generator=generator, device=visible.device).masked_fill(~visible, -1.0)
    index = draw.topk(min(top_k, view.keys), dim=-1).indices
    return index.masked_fill(~visible.gather(-1, index), -1).to(torch.int32)


def selection_mask(index_BTK: torch.Tensor, keys: int) -> torch.Tensor:
    """bool (B, 1, T, S) for SDPA: True at the selected keys. A query without any sees all, as in
    ``Visibility``.
    """
    slot = index_BTK.long().masked_fill(index_BTK < 0, keys)
    mask = torch.zeros(*index_BTK.shape[:2], keys + 1, dtype=torch.bool, device=index_BTK.device)
    mask = mask.scatter_(-1, slot, True)[..., :keys]
    return (mask | (index_BTK < 0).all(-1, keepdim=True)).unsqueeze(1)


@torch.no_grad()
def captured_mass(
    q_BTNH: torch.Tensor,
    k_BSNH: torch.Tensor,
    scale: float,
    index_BTK: torch.Tensor,
    view: Visibility,
    top_k: int,
) -> torch.Tensor:
    """Attention mass (head mean, of dense attention) that lies on selected keys, and on the best K and last K
    keys.

    Means over the queries that see more than K keys, where selecting decides anything: a float32 (3,) tensor
    [selected, best possible, window], or NaN when no query sees that many.
    """
    sums, queries = q_BTNH.new_zeros(3, dtype=torch.float32), 0
    for t in range(0, q_BTNH.shape[1], QUERY_TILE):
        rows = slice(t, t + QUERY_TILE)
        start, stop = view.start_BT[:, rows], view.stop_BT[:, rows]
        chosen = (stop - start) > top_k
        if not chosen.any():
            continue
        score = torch.einsum("btnh,bsnh->bnts", q_BTNH[:, rows].float(), k_BSNH.float()) * scale
        hidden = ~visible_mask(start, stop, view.keys)
        mass = score.masked_fill(hidden.unsqueeze(1), float("-inf")).softmax(-1).mean(1)[chosen]
        index = index_BTK[:, rows][chosen]
        last = visible_mask(stop - top_k, stop, view.keys)[chosen]
        sums[0] += mass.gather(-1, index.clamp(min=0).long()).masked_fill(index < 0, 0.0).sum()
        sums[1] += mass.topk(top_k, dim=-1).values.sum()
        sums[2] += mass.masked_fill(~last, 0.0).sum()
        queries += int(chosen.sum())
    return sums / queries if queries else sums + float("nan")
