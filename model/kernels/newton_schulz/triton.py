"""Batched Newton-Schulz on CUDA: the contract is ``reference.newton_schulz``.

A step multiplies X from the left with a polynomial P in G = X X^T. Where X is wide, steps are taken together:
with the small symmetric matrices P and G alone, Q <- P Q and G <- P G P, and X <- Q X once. All are
polynomials in the first G, so they commute and every product of two is symmetric. Rounding G shifts its small
eigenvalues, and each step amplifies that by 3.4445^2; G is therefore kept in float16, whose rounding is an
eighth of bfloat16's, and computed anew from X after three steps. Against float64, this is nearer than single
steps in bfloat16, on random and on ill-conditioned matrices; five steps together are not.

L matrices, A rows, B columns.
"""

import torch
import triton

from model.kernels.newton_schulz.reference import COEFFICIENTS, STEPS
from model.kernels.newton_schulz.symmetric import symmetric_product

_INTERPRET = triton.knobs.runtime.interpret
X_TYPE, GRAM_TYPE = (torch.float32, torch.float32) if _INTERPRET else (torch.bfloat16, torch.float16)
# G is stored times this, so that float16 keeps its small elements; the largest are 1.5.
GRAM_SCALE = 8192.0
TOGETHER = (3, 2)


@torch.no_grad()
def newton_schulz(x_LAB: torch.Tensor, norm_L: torch.Tensor | None = None) -> torch.Tensor:
    """As the reference, in bfloat16. Norms below 1e-18 count as 1e-18; the squares of those above 1.8e19
    overflow, and the result is NaN.
    """
    wide = x_LAB.shape[-2] <= x_LAB.shape[-1]
    x = (x_LAB if wide else x_LAB.transpose(-2, -1)).to(X_TYPE).contiguous()
    if norm_L is None:
        norm_L = torch.linalg.vector_norm(x, dim=(-2, -1), dtype=torch.float32)
    scale_L = 1.0 / norm_L.clamp(min=1e-18)  # its square is finite
    for steps in _segments(*x.shape[-2:]):
        x = _factor(x, steps, scale_L) @ x
        scale_L = torch.ones_like(scale_L)
    return (x if wide else x.transpose(-2, -1)).to(x_LAB.dtype)


def _segments(rows: int, columns: int) -> tuple[int, ...]:
    """How many steps are taken together; below 1.5 columns a row, none: that saves nothing there."""
    return TOGETHER if 2 * columns >= 3 * rows else (1,) * STEPS


def _factor(x_LAB: torch.Tensor, steps: int, scale_L: torch.Tensor) -> torch.Tensor:
    """Q (L, A, A), such that Q X is ``steps`` steps from X times ``scale_L``."""
    a, b, c = COEFFICIENTS
    inside = {"dtype": GRAM_TYPE, "scale_L": torch.ones_like(scale_L)}
    result = {"dtype": x_LAB.dtype, "scale_L": scale_L}
    gram = symmetric_product(x_LAB, x_LAB, alpha=GRAM_SCALE, dtype=GRAM_TYPE, scale_L=scale_L * scale_L)
    factor = None
    for left in reversed(range(steps)):
        poly = symmetric_product(
            gram, gram, alpha=c / GRAM_SCALE**2, base_LAA=gram, beta=b / GRAM_SCALE, diagonal=a,
            **(result if steps == 1 else inside),
        )  # fmt: skip
        if factor is None:
            factor = poly
        else:
            factor = symmetric_product(poly, factor, **(inside if left else result))
        if left:
            gram = symmetric_product(symmetric_product(poly, gram, **inside), poly, **inside)
    return factor
