"""The passes of a Muon step around Newton-Schulz (``model/optim/muon.py``).

L blocks of a parameter, each R rows and C columns; A, B: the same with A <= B, so a tall block is transposed.
"""

import torch


@torch.no_grad()
def nesterov_direction(
    momentum_LRC: torch.Tensor, grad_LRC: torch.Tensor, decay: float, out_LAB: torch.Tensor
) -> torch.Tensor:
    """``M <- decay M + G``, in place, and ``out <- G + decay M``.

    Args:
        momentum_LRC, grad_LRC, out_LAB: float, contiguous.

    Returns:
        norm_LN: Frobenius norms of N parts of every block, float32 (float64 for float64 inputs); here the
        block is one part.
    """
    momentum_LRC.mul_(decay).add_(grad_LRC)
    direction = grad_LRC.add(momentum_LRC, alpha=decay)
    out_LAB.copy_(direction if _wide(momentum_LRC) else direction.transpose(-2, -1))
    kind = torch.promote_types(out_LAB.dtype, torch.float32)
    return torch.linalg.matrix_norm(out_LAB.to(kind)).unsqueeze(-1)


@torch.no_grad()
def decayed_update(weight_LRC: torch.Tensor, update_LAB: torch.Tensor, decay: float, step: float) -> None:
    """``W <- decay W + step U``, in place; both contiguous."""
    update = update_LAB if _wide(weight_LRC) else update_LAB.transpose(-2, -1)
    weight_LRC.mul_(decay).add_(update, alpha=step)


def _wide(x_LRC: torch.Tensor) -> bool:
    return x_LRC.shape[-2] <= x_LRC.shape[-1]
