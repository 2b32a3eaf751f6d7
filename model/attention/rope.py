"""Rotary positions on interleaved pairs (x0, x1), (x2, x3), ... as GLM-5 uses them in the main attention and
in the
indexer alike. R rope dim.
"""

import torch


def rope_table(position_BT: torch.Tensor, dim: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position's angle for each of the ``dim / 2`` pairs: two float32 (B, T, dim /
    2).
    """
    exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=position_BT.device) / dim
    angle = position_BT.unsqueeze(-1).float() / base**exponent
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate (B, T, R) or (B, T, heads, R) by the table's angles.

    The result lists the pairs' first members, then the second ones. Queries and keys are reordered alike, so
    their dot products are those of the interleaved order.
    """
    if x.dim() == 4:
        cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
