"""GPTQ: round a weight column by column and let the later columns make up for each error.

The inputs' second moments say how (Frantar et al., 2022). Static order by activation: the columns of largest
second moment come first, while their errors can still be made up for ("act-order" of the reference code).
E matrices, O output and I input features.
"""

import torch

from model.quantization.rounding import QuantizedTensor, quantize_weight
from model.quantization.scales import mse_scale

DAMPING = 0.01  # of the mean diagonal
BLOCK = 128  # columns whose update of the rest is done at once


def gptq(
    weight_EOI: torch.Tensor, hessian_EII: torch.Tensor, bits: int
) -> tuple[QuantizedTensor, torch.Tensor]:
    """Matrices of one shape, all at once.

    Scales are those of the reference code's option ``mse`` (``scales.mse_scale``), found before any column is
    rounded. ``hessian_EII``: ``X^T X`` of the inputs in any scale, float64.

    Returns:
        The quantised weights (E, O, I), and bool (E,): those whose damped Hessian has no Cholesky factor.
        They are rounded to nearest.
    """
    scale = mse_scale(weight_EOI, bits)
    hessian, weight = hessian_EII.double().clone(), weight_EOI.double()
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    diagonal.masked_fill_(diagonal <= 0, 1.0)  # inputs that are always 0
    order_EI = diagonal.argsort(dim=-1, descending=True, stable=True)
    rows, columns = order_EI.unsqueeze(2), order_EI.unsqueeze(1)
    hessian = hessian.gather(1, rows.expand_as(hessian)).gather(2, columns.expand_as(hessian))
    weight = weight.gather(2, columns.expand_as(weight))
    upper, failed_E = _inverse_factor(hessian)
    values = torch.empty_like(weight, dtype=torch.int8)
    for first in range(0, weight.shape[-1], BLOCK):
        last = min(first + BLOCK, weight.shape[-1])
        _round_columns(weight, values, upper, scale, bits, first, last)
    inverse = order_EI.argsort(-1).unsqueeze(1)
    return QuantizedTensor(values.gather(2, inverse.expand_as(values)), scale, bits), failed_E


def _inverse_factor(hessian_EII: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper Cholesky factors of the damped Hessians' inverses, and which have none: these get the
    identity, under which no column makes up for another.
    """
    mean_E11 = hessian_EII.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    one = torch.eye(hessian_EII.shape[-1], dtype=hessian_EII.dtype, device=hessian_EII.device)
    lower, failed_E = _factor(hessian_EII + DAMPING * mean_E11 * one, one, upper=False)
    upper, later_E = _factor(torch.cholesky_inverse(lower), one, upper=True)
    return torch.where(failed_E[:, None, None], one, upper), failed_E | later_E


def _factor(matrix_EII: torch.Tensor, one_II: torch.Tensor, upper: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Cholesky factors, the identity where there is none."""
    factor, failed_E = torch.linalg.cholesky_ex(matrix_EII, upper=upper)
    failed_E = (failed_E != 0) | ~factor.isfinite().flatten(1).all(1)
    return torch.where(failed_E[:, None, None], one_II, factor), failed_E


def _round_columns(weight, values, upper, scale, bits: int, first: int, last: int) -> None:
    """Round columns first .. last in place; errors go to the columns behind each."""
    errors = torch.empty_like(weight[..., first:last])
    for column in range(first, last):
        q = quantize_weight(weight[..., column : column + 1], scale, bits)
        values[..., column] = q[..., 0]
        error = weight[..., column : column + 1] - q * scale.double()
        error /= upper[:, column : column + 1, column : column + 1]
        weight[..., column:last] -= error * upper[:, column : column + 1, column:last]
        errors[..., column - first : column - first + 1] = error
    weight[..., last:] -= errors @ upper[:, first:last, last:]
