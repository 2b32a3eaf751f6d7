"""Moving outliers from activations into weights: ``W x = (W diag(s)) (x / s)``.

Whoever writes x divides its rows by s, whoever reads it takes s into its columns, so the float function stays
the same. What differs between the methods is s, one factor an input feature:

* SmoothQuant: ``max|x|^0.5 / max|W|^0.5``.
* AWQ: ``mean|x|^a`` with the a of least output error; the experts' norm is smoothed too, which the router
  must follow. Then it clips weights: ``scales.clipped_scale``.
* flex smooth quant: ``max|x|^a / max|W|^b`` over a grid of both.
* flex AWQ-SSZ: AWQ's factors for the routed experts' up and down pairs, judged with the quantiser that will
  be used, SSZ.

Every search scores with real rounding of weights and tokens. N tokens, O output and I input features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from model.quantization.calibration import Inputs
from model.quantization.rounding import dequantize, quantize_tokens, quantize_weight
from model.quantization.scales import ScaleSearch

AWQ_GRID = [step / 20 for step in range(21)]
FLEX_GRID = [step / 10 for step in range(11)]
SPREAD = 1e-4  # the smallest factor relative to the largest

# Inputs and the weights that read them to candidates: exponents and the factor of each feature.
Candidates = Callable[[Inputs, list[torch.Tensor]], Iterator[tuple[tuple[float, ...], torch.Tensor]]]


@dataclass(frozen=True)
class Smoothing:
    """The chosen factors, their exponents, and the mean squared output error with them and without."""

    factor_I: torch.Tensor  # float32
    exponents: tuple[float, ...]
    error: float
    plain_error: float

    def facts(self) -> dict:
        return {"exponents": list(self.exponents), "error": self.error, "plain_error": self.plain_error}


def smoothquant(inputs: Inputs, weights: list[torch.Tensor]) -> Iterator[tuple[tuple, torch.Tensor]]:
    yield (0.5, 0.5), _factor(inputs.largest_I, weights, 0.5, 0.5)


def awq(inputs: Inputs, weights: list[torch.Tensor]) -> Iterator[tuple[tuple, torch.Tensor]]:
    for alpha in AWQ_GRID:
        yield (alpha,), _factor(inputs.mean_I, weights, alpha, 0.0)


def flex(inputs: Inputs, weights: list[torch.Tensor]) -> Iterator[tuple[tuple, torch.Tensor]]:
    for alpha in FLEX_GRID:
        for beta in FLEX_GRID:
            yield (alpha, beta), _factor(inputs.largest_I, weights, alpha, beta)


def search(
    candidates: Candidates, inputs: Inputs, weights: list[torch.Tensor], bits: int, scale_of: ScaleSearch
) -> Smoothing:
    """The candidate of least output error over all weights (O, I) that read these inputs."""
    score = Score(inputs.rows_NI, weights, bits, scale_of)
    plain, best = score(torch.ones_like(inputs.mean_I)), None
    for exponents, factor_I in candidates(inputs, weights):
        error = score(factor_I)
        if best is None or error < best.error:
            best = Smoothing(factor_I, exponents, error, plain)
    return best


class Score:
    """Mean squared error of the outputs with 8-bit tokens and weights of so many bits under a factor."""

    def __init__(self, rows_NI: torch.Tensor, weights: list[torch.Tensor], bits: int, scale_of: ScaleSearch):
        self._rows_NI, self._bits, self._scale_of = rows_NI, bits, scale_of
        self._weight_OI = torch.cat([weight.float() for weight in weights])
        self._expected_NO = F.linear(rows_NI, self._weight_OI)

    def __call__(self, factor_I: torch.Tensor) -> float:
        tokens_NI = dequantize(*quantize_tokens(self._rows_NI / factor_I))
        weight_OI = self._weight_OI * factor_I
        scale = self._scale_of(weight_OI, self._bits)
        rounded = dequantize(quantize_weight(weight_OI, scale, self._bits), scale)
        return float((F.linear(tokens_NI, rounded) - self._expected_NO).square().mean())


def _factor(size_I: torch.Tensor, weights: list[torch.Tensor], alpha: float, beta: float) -> torch.Tensor:
    """``size^alpha / max|W|^beta``, centred at 1 so that scales stay where they are."""
    factor = _positive(size_I) ** alpha
    if beta:
        column_I = torch.stack([weight.float().abs().amax(0) for weight in weights]).amax(0)
        factor = factor / _positive(column_I) ** beta
    factor = factor.clamp_min(factor.max() * SPREAD)
    return factor / (factor.max() * factor.min()).sqrt()


def _positive(size_I: torch.Tensor) -> torch.Tensor:
    """A feature that is always 0 counts as a very small one."""
    return size_I.clamp_min(float(size_I.max()) * SPREAD).clamp_min(torch.finfo(size_I.dtype).tiny)
