"""The one place that rounds: quantisation-aware training, calibration, the packer and the kernels use these
functions or are tested against them bit for bit (paper section 2.4.3: one quantiser for all).

Symmetric integers, nearest with halves to even, all arithmetic in float32 with true divisions (a product with
the reciprocal gives other bits).

O output features, I input features, T tokens; leading dimensions (experts) are free.
"""

from dataclasses import dataclass

import torch

# Smallest scale of a weight row (slime's and msModelSlim's floor): a row of zeros stays zeros.
WEIGHT_FLOOR = 1e-5
# Smallest scale of a token. Activations may be small as a whole, so this only keeps zero rows from dividing
# by zero.
TOKEN_FLOOR = 1e-10
TOKEN_BITS = 8


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A weight as integers: ``values * scale`` is what it stands for.

    values: int8 (..., O, I), within ``+-largest(bits)`` where they were rounded here. Folders of others may
        hold one less, -8 of 4 bits, with which all kernels compute. A 4-bit weight too has one value a byte.
    scale: float32 (..., O, 1), finite and positive, which ``model.hub`` checks of a folder's.
    """

    values: torch.Tensor
    scale: torch.Tensor
    bits: int

    def __post_init__(self):
        largest(self.bits)
        if self.values.dtype != torch.int8 or self.scale.dtype != torch.float32:
            raise ValueError(
                f"a quantised weight is int8 with float32 scales, and this one is {self.values.dtype} with "
                f"{self.scale.dtype}"
            )
        if self.values.dim() < 2 or self.scale.shape != (*self.values.shape[:-1], 1):
            raise ValueError(
                f"values of shape {tuple(self.values.shape)} need one scale a row, "
                f"{(*self.values.shape[:-1], 1)}, and these have {tuple(self.scale.shape)}"
            )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return dequantize(self.values, self.scale).to(dtype)


def largest(bits: int) -> int:
    """The largest magnitude: 7 for 4 bits, 127 for 8. ``ValueError`` outside of 2 to 8 bits."""
    if not 2 <= bits <= 8:
        raise ValueError(f"weights are quantised to 2 to 8 bits, not {bits}")
    return 2 ** (bits - 1) - 1


def minmax_scale(weight_OI: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 (..., O, 1): the row's largest magnitude meets the largest integer."""
    return _share(weight_OI.float(), largest(bits)).clamp_min(WEIGHT_FLOOR)


def quantize_weight(weight_OI: torch.Tensor, scale_O1: torch.Tensor, bits: int) -> torch.Tensor:
    """int8 (..., O, I) of a float weight, clamped to ``+-largest(bits)``."""
    return _round(weight_OI.float() / scale_O1, largest(bits)).to(torch.int8)


def quantize_tokens(x_TI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dynamic int8 of activations: int8 (..., T, I) and float32 scales (..., T, 1), one a token."""
    x_TI, most = x_TI.float(), largest(TOKEN_BITS)
    scale_T1 = _share(x_TI, most).clamp_min(TOKEN_FLOOR)
    return _round(x_TI / scale_T1, most).to(torch.int8), scale_T1


def dequantize(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 ``values * scale``."""
    return values.float() * scale


def fake_quantize(weight_OI: torch.Tensor, bits: int) -> torch.Tensor:
    """The weight as it will be after min-max quantisation, in its own dtype, for training: its gradient
    passes straight through to ``weight_OI``.
    """
    with torch.no_grad():
        scale = minmax_scale(weight_OI, bits)
        rounded = dequantize(quantize_weight(weight_OI, scale, bits), scale).to(weight_OI.dtype)
    return _StraightThrough.apply(weight_OI, rounded)


class _StraightThrough(torch.autograd.Function):
    """The second argument's bits with the first one's gradient; ``w + (q - w)`` would round once more."""

    @staticmethod
    def forward(ctx, weight, rounded):
        return rounded

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def _share(x: torch.Tensor, most: int) -> torch.Tensor:
    """A row's largest magnitude over ``most``; a tensor, since on CUDA torch multiplies by a number's
    reciprocal.
    """
    top = x.abs().amax(-1, keepdim=True)
    return top / torch.full_like(top, most)


def _round(x: torch.Tensor, most: int) -> torch.Tensor:
    return x.round().clamp(-most, most)  # torch rounds halves to even
