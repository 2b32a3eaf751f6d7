"""Scales of a weight's rows: the error under one, and SSZ, which lessens it.

O output features, I input features; leading dimensions (experts) are free; all float32.
"""

from collections.abc import Callable

import torch

from model.quantization.rounding import WEIGHT_FLOOR, dequantize, minmax_scale, quantize_weight

# Weight (..., O, I) and bits to scales (..., O, 1).
ScaleSearch = Callable[[torch.Tensor, int], torch.Tensor]

SSZ_STEPS = 10  # of msModelSlim's recipe for GLM-5
SSZ_CHANGE = 1e-10


def squared_error(weight_OI: torch.Tensor, scale_O1: torch.Tensor, bits: int) -> torch.Tensor:
    """Mean squared error (..., O, 1) of every row under that scale."""
    rounded = dequantize(quantize_weight(weight_OI, scale_O1, bits), scale_O1)
    return (rounded - weight_OI.float()).square().mean(-1, keepdim=True)


def ssz_scale(weight_OI: torch.Tensor, bits: int, *, steps: int = SSZ_STEPS) -> torch.Tensor:
    """msModelSlim's SSZ: alternate between rounding to q and the scale of least squares ``<W, q> / <q, q>``,
    from min-max on, and keep every row's best. Never worse than min-max in squared error.
    """
    return _best(weight_OI, bits, _least_squares(weight_OI.float(), bits, steps))


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


def _best(weight_OI: torch.Tensor, bits: int, candidates) -> torch.Tensor:
    best = least = None
    for scale in candidates:
        error = squared_error(weight_OI, scale, bits)
        if best is None:
            best, least = scale, error
        else:
            better = error < least
            best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best
