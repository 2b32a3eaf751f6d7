"""Newton-Schulz orthogonalisation of a batch of matrices (Muon; Moonlight eq. 4, coefficients of Keller
Jordan's Muon).

L matrices, A rows, B columns.
"""

import torch

# Odd quintic a x + b x^3 + c x^5: drives singular values of (0, 1] into about [0.68, 1.21] in five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


@torch.no_grad()
def newton_schulz(x_LAB: torch.Tensor, norm_L: torch.Tensor | None = None) -> torch.Tensor:
    """Nearly the orthogonal polar factor ``U V^T`` of every matrix, by five steps from ``X / ||X||_F``.

    Args:
        x_LAB: float; a zero matrix gives zeros.
        norm_L: the Frobenius norms, float32 (float64 for float64 inputs), where they are known.

    Returns:
        o_LAB in the input's dtype. Arithmetic is bfloat16 on a GPU (as in the paper's lineage); on a CPU it
        is float32, so that a step does not depend on how the matrices were batched, and float64 for float64
        inputs.
    """
    a, b, c = COEFFICIENTS
    wide = x_LAB.shape[-2] <= x_LAB.shape[-1]
    x = x_LAB if wide else x_LAB.transpose(-2, -1)
    if norm_L is None:
        norm_L = torch.linalg.matrix_norm(x.to(torch.promote_types(x.dtype, torch.float32)))
    x = (x / norm_L.clamp(min=1e-20)[:, None, None]).to(working_dtype(x_LAB))
    for _ in range(STEPS):
        gram = x @ x.transpose(-2, -1)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.transpose(-2, -1)).to(x_LAB.dtype)


def working_dtype(x: torch.Tensor) -> torch.dtype:
    """Of the products for matrices like this one."""
    if x.is_cuda:
        return torch.bfloat16
    return torch.promote_types(x.dtype, torch.float32)
