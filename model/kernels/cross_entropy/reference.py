"""Head projection and cross-entropy together, in chunks of tokens (paper section 2.4: sequence-chunked head
and loss).

M tokens, D hidden, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

IGNORE = -100
# Logits held at once, in elements: 256 MiB in float32.
CHUNK_LOGITS = 1 << 26


def linear_cross_entropy(x_MD: torch.Tensor, weight_VD: torch.Tensor, target_M: torch.Tensor) -> torch.Tensor:
    """``-log softmax(weight x)[target]`` for each token. Gradients to x and weight.

    Args:
        x_MD: hidden states after the final norm.
        weight_VD: the head.
        target_M: int64 token ids; ``IGNORE`` (-100) gives loss 0 and no gradient.

    Returns:
        loss_M, float32 (float64 for float64 inputs), in nats. The full (M, V) logits never exist at once when
        they are larger than a chunk: a chunk's logits are computed again in the backward pass.
    """
    rows = max(1, CHUNK_LOGITS // weight_VD.shape[0])
    if x_MD.shape[0] <= rows:
        return _chunk_loss(x_MD, weight_VD, target_M)
    pieces = zip(x_MD.split(rows), target_M.split(rows), strict=True)
    return torch.cat(
        [checkpoint(_chunk_loss, x, weight_VD, target, use_reentrant=False) for x, target in pieces]
    )


def _chunk_loss(x_MD: torch.Tensor, weight_VD: torch.Tensor, target_M: torch.Tensor) -> torch.Tensor:
    kept = (target_M != IGNORE).nonzero()[:, 0]  # no logits where nothing is learned, which is most of a chat
    logits_KV = F.linear(x_MD[kept], weight_VD)
    logits_KV = logits_KV.to(torch.promote_types(logits_KV.dtype, torch.float32))
    loss_K = F.cross_entropy(logits_KV, target_M[kept], reduction="none")
    return loss_K.new_zeros(len(target_M)).index_put((kept,), loss_K)
