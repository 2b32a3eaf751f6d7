"""GPTQ: round a weight column by column and let the later columns make up for each error.

The inputs' second moments say how (Frantar et al., 2022). Static order by activation: the columns of largest
second moment come first, while their errors can still be made up for ("act-order" of the reference code).
O output and I input features.
"""

import torch

from model.quantization.rounding import QuantizedTensor, quantize_weight
from model.quantization.scales import mse_scale

DAMPING = 0.01  # of the mean diagonal
BLOCK = 128  # columns whose update of the rest is done at once


def gptq(weight_OI: torch.Tensor, hessian_II: torch.Tensor, bits: int) -> QuantizedTensor | None:
    """The quantised weight; None where the damped Hessian has no Cholesky factor.

    Scales are those of the reference code's option ``mse`` (``scales.mse_scale``), found before any column is
    rounded. ``hessian_II``: ``X^T X`` of the inputs in any scale, float64.
    """
    scale = mse_scale(weight_OI, bits)
    hessian, weight = hessian_II.double().clone(), weight_OI.double().clone()
    unused = hessian.diagonal() <= 0  # inputs that are always 0
    hessian.diagonal()[unused] = 1.0
    order = hessian.diagonal().argsort(descending=True, stable=True)
    hessian, weight = hessian[order][:, order], weight[:, order]
    upper = _inverse_factor(hessian)
    if upper is None:
        return None
    values = torch.empty_like(weight, dtype=torch.int8)
    for first in range(0, weight.shape[1], BLOCK):
        last = min(first + BLOCK, weight.shape[1])
        _round_columns(weight, values, upper, scale, bits, first, last)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return QuantizedTensor(values[:, inverse].contiguous(), scale, bits)


def _inverse_factor(hessian_II: torch.Tensor) -> torch.Tensor | None:
    """The upper Cholesky factor of the damped Hessian's inverse."""
    damped = hessian_II.clone()
    damped.diagonal().add_(DAMPING * damped.diagonal().mean())
    lower, failed = torch.linalg.cholesky_ex(damped)
    if failed or not lower.isfinite().all():
        return None
    upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    return None if failed or not upper.isfinite().all() else upper


def _round_columns(weight, values, upper, scale, bits: int, first: int, last: int) -> None:
    """Round columns first .. last in place; errors go to the columns behind each."""
    errors = torch.empty_like(weight[:, first:last])
    for column in range(first, last):
        q = quantize_weight(weight[:, column : column + 1], scale, bits)
        values[:, column] = q[:, 0]
        error = (weight[:, column] - (q * scale.double())[:, 0]) / upper[column, column]
        weight[:, column:last] -= error.unsqueeze(1) * upper[column, column:last]
        errors[:, column - first] = error
    weight[:, last:] -= errors @ upper[first:last, last:]
