"""Rotating some features of every head in one pass. B batch, T tokens, H features, R rope dim."""

import torch

from model.attention.rope import rotate


def rotate_part(x: torch.Tensor, turn_BTR: torch.Tensor, first: int) -> torch.Tensor:
    """``x`` (B, T, H) or (B, T, heads, H) with the features ``first .. first + R`` rotated as by ``rotate``.

    ``turn_BTR``: complex64, R / 2 wide, of as many batch entries as x or of one for all. Gradients flow to x.
    """
    size = 2 * turn_BTR.shape[-1]
    before, part, behind = x.split([first, size, x.shape[-1] - first - size], -1)
    return torch.cat([before, rotate(part, turn_BTR), behind], -1)
