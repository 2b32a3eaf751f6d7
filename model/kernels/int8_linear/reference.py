"""A linear layer in integers: int8 tokens times weights of 8 or 4 bits, sums in int32, one scale a row and a
column.

M tokens, I input features, O output features.
"""

import torch

from model.quantization.rounding import largest, quantize_tokens

# Up to this, float32 holds every whole number, so a product whose partial sums stay below it is exact.
EXACT_FLOAT32 = 2**24


def int8_linear(x_MI: torch.Tensor, weight: torch.Tensor, scale_O1: torch.Tensor) -> torch.Tensor:
    """``(sum_i q_mi w_oi) * s_m * scale_o`` with ``q, s = quantize_tokens(x)``, in this order in float32.

    Args:
        x_MI: tokens, any float dtype.
        weight: int8 (O, I), or uint8 (O, I / 2) of ``pack_int4``.
        scale_O1: float32.

    Returns:
        out_MO in x's dtype. The sum is exact, so a token's row does not depend on the tokens beside it.
    """
    token_MI, scale_M1 = quantize_tokens(x_MI)
    total_MO = integer_product(token_MI, weight)
    return (total_MO.float() * scale_M1 * scale_O1.t()).to(x_MI.dtype)


def integer_product(token_MI: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int32 (M, O), exact: ``token @ weight.t()``, the weight as in ``int8_linear``.

    Floats of enough digits multiply whole numbers without an error and much quicker than torch's integers.
    """
    most = largest(8) + 1  # weights of others may hold -128
    if weight.dtype == torch.uint8:
        weight, most = unpack_int4(weight), largest(4) + 1
    exact = largest(8) * most * token_MI.shape[-1] < EXACT_FLOAT32
    wide = torch.float32 if exact else torch.float64
    return (token_MI.to(wide) @ weight.to(wide).t()).to(torch.int32)


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """uint8 (..., I / 2) of int8 values in -8..7: byte j holds value j in its low and value j + I / 2 in its
    high four bits, so that either half multiplies a whole range of a token without a permutation.

    ``ValueError`` for an odd I.
    """
    if values.shape[-1] % 2:
        raise ValueError(f"{values.shape[-1]} values of 4 bits do not fill whole bytes: use an even number")
    low, high = values.view(torch.uint8).chunk(2, -1)
    return (low & 15) | (high << 4)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """int8 (..., I) of packed bytes."""
    low, high = (packed << 4).view(torch.int8) >> 4, packed.view(torch.int8) >> 4
    return torch.cat([low, high], -1)
