"""Rotary positions on interleaved pairs (x0, x1), (x2, x3), ... as GLM-5 uses them in the main attention and
in the indexer alike: each pair is a complex number, and a position turns it. R rope dim.
"""

import torch


def rope_table(position_BT: torch.Tensor, dim: int, base: float) -> torch.Tensor:
    """What every position turns each of the ``dim / 2`` pairs by: complex64 (B, T, dim / 2), of length 1."""
    exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=position_BT.device) / dim
    angle = position_BT.unsqueeze(-1).float() / base**exponent
    return torch.complex(angle.cos(), angle.sin())


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotate (B, T, R) or (B, T, heads, R) by the table, narrow inputs in float32."""
    turn = turn.unsqueeze(2) if x.dim() == 4 else turn
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
