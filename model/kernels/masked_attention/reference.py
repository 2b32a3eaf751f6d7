"""Attention per head over a contiguous range of keys, or over those selected inside it: the expanded form of
MLA in training (paper section 2.1), where keys are few enough that skipping single ones saves nothing.

B batch, T queries, S keys, N heads, H qk head dim, V value head dim, K selected keys.
"""

import torch


def masked_attention(
    q_BTNH: torch.Tensor,
    k_BSNH: torch.Tensor,
    v_BSNV: torch.Tensor,
    scale: float,
    start_BT: torch.Tensor,
    stop_BT: torch.Tensor,
    index_BTK: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention. Gradients flow to queries, keys and values.

    Args:
        scale: factor of the scores before the softmax.
        start_BT, stop_BT: each query sees the keys ``start <= s < stop``, int32.
        index_BTK: int32 indices of the seen keys that count, negative entries none; all of them if left out.

    Returns:
        out_BTNV in q's dtype, zero for a query without keys; lse_BTN, float32 (float64 for float64 inputs):
        natural log-sum-exp of the scaled scores, -inf for such a query. No gradient flows through lse.
    """
    dtype = torch.promote_types(q_BTNH.dtype, torch.float32)
    key = torch.arange(k_BSNH.shape[1], device=q_BTNH.device)
    seen_BTS = (key >= start_BT.unsqueeze(-1)) & (key < stop_BT.unsqueeze(-1))
    if index_BTK is not None:
        slot = index_BTK.long().masked_fill(index_BTK < 0, len(key))
        chosen = torch.zeros(*index_BTK.shape[:2], len(key) + 1, dtype=torch.bool, device=key.device)
        seen_BTS = seen_BTS & chosen.scatter_(-1, slot, True)[..., :-1]
    score_BNTS = torch.einsum("btnh,bsnh->bnts", q_BTNH, k_BSNH).to(dtype) * scale
    score_BNTS = score_BNTS.masked_fill(~seen_BTS.unsqueeze(1), float("-inf"))
    lse_BTN = score_BNTS.detach().logsumexp(-1).transpose(1, 2)
    # A query without keys has only -inf scores: its softmax is NaN, and zero is meant.
    weight_BNTS = torch.where(seen_BTS.unsqueeze(1), score_BNTS.softmax(-1), 0.0)
    return torch.einsum("bnts,bsnv->btnv", weight_BNTS.to(v_BSNV.dtype), v_BSNV), lse_BTN
