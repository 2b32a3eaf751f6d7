"""Scales of a weight's rows: the error under one, and searches that lessen it.

O output features, I input features, N tokens; leading dimensions (experts) are free unless said otherwise;
all float32.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F

from model.quantization.rounding import (
    WEIGHT_FLOOR,
    dequantize,
    minmax_scale,
    quantize_tokens,
    quantize_weight,
)

# Weight (..., O, I) and bits to scales (..., O, 1).
ScaleSearch = Callable[[torch.Tensor, int], torch.Tensor]

SSZ_STEPS = 10  # of msModelSlim's recipe for GLM-5
SSZ_CHANGE = 1e-10
CLIP_SHARES = [1 - step / 20 for step in range(10)]  # AWQ's: 1 to 0.55
MSE_SHARES = [1 - step / 100 for step in range(80)]  # GPTQ's: 1 to 0.21
MSE_POWER = 2.4


def squared_error(weight_OI: torch.Tensor, scale_O1: torch.Tensor, bits: int) -> torch.Tensor:
    """Mean squared error (..., O, 1) of every row under that scale."""
    return _rounding_error(weight_OI, scale_O1, bits).square().mean(-1, keepdim=True)


def ssz_scale(weight_OI: torch.Tensor, bits: int, *, steps: int = SSZ_STEPS) -> torch.Tensor:
    """msModelSlim's SSZ: alternate between rounding to q and the scale of least squares ``<W, q> / <q, q>``,
    from min-max on, and keep every row's best. Never worse than min-max in squared error.
    """
    candidates = _least_squares(weight_OI.float(), bits, steps)
    return _best(candidates, lambda scale: squared_error(weight_OI, scale, bits))


def mse_scale(weight_OI: torch.Tensor, bits: int) -> torch.Tensor:
    """The search of GPTQ's reference code with ``mse=True`` (IST-DASLab/gptq, quant.py): the share of min-max
    with the least sum of ``|error|^2.4`` in each row.
    """

    def error(scale):
        return _rounding_error(weight_OI, scale, bits).abs().pow(MSE_POWER).sum(-1, keepdim=True)

    return _best(_shares(weight_OI, bits, MSE_SHARES), error)


def clipped_scale(weight_OI: torch.Tensor, rows_NI: torch.Tensor, bits: int) -> torch.Tensor:
    """AWQ's search for weights to clip (Lin et al., 2023; mit-han-lab/llm-awq, auto_clip.py): the share of
    min-max with the least squared error of each row's output on these inputs.

    Clamping a row and then taking min-max is the same as a smaller scale, since integers are clamped. As
    everywhere here tokens are rounded to 8 bits too; AWQ's own code leaves activations as they are.
    ``weight_OI``: one matrix.
    """
    tokens_NI, expected_NO = dequantize(*quantize_tokens(rows_NI)), F.linear(rows_NI, weight_OI.float())

    def error(scale):
        rounded = dequantize(quantize_weight(weight_OI, scale, bits), scale)
        return (F.linear(tokens_NI, rounded) - expected_NO).square().mean(0).unsqueeze(-1)

    return _best(_shares(weight_OI, bits, CLIP_SHARES), error)


def _rounding_error(weight_OI: torch.Tensor, scale_O1: torch.Tensor, bits: int) -> torch.Tensor:
    return dequantize(quantize_weight(weight_OI, scale_O1, bits), scale_O1) - weight_OI.float()


def _shares(weight_OI: torch.Tensor, bits: int, shares: Iterable[float]) -> Iterator[torch.Tensor]:
    widest = minmax_scale(weight_OI, bits)
    return ((share * widest).clamp_min(WEIGHT_FLOOR) for share in shares)


def _least_squares(weight_OI: torch.Tensor, bits: int, steps: int):
    scale = minmax_scale(weight_OI, bits)
    yield scale
    for _ in range(steps):
        q = quantize_weight(weight_OI, scale, bits).float()
        norm = q.square().sum(-1, keepdim=True)
        fitted = (weight_OI * q).sum(-1, keepdim=True) / norm.clamp_min(1.0)
        fitted = torch.where(norm > 0, fitted, scale).clamp_min(WEIGHT_FLOOR)
        if (fitted - scale).abs().max() < SSZ_CHANGE:
            return
        scale = fitted
        yield scale


def _best(
    candidates: Iterable[torch.Tensor], error_of: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Of every row the first candidate with the least error, (..., O, 1)."""
    best = least = None
    for scale in candidates:
        error = error_of(scale)
        if best is None:
            best, least = scale, error
        else:
            better = error < least
            best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best
