"""Integer linear layers on CUDA: the contract is ``reference.int8_linear``, bit for bit.

M tokens, N output features, K input features, W bytes of a weight row.
"""

from triton import next_power_of_2

from model.kernels.int8_linear.one_token import one_token, takes
from model.kernels.int8_linear.product import Tiling, product
from model.kernels.int8_linear.rows import quantize


def int8_linear(x_MK, weight, scale_N1, tiling: Tiling | None = None):
    """As the reference. ``tiling`` of the product."""
    x_MK = x_MK.contiguous()
    if tiling is None and takes(x_MK, weight):
        return one_token(x_MK, weight, scale_N1)
    tiling = tiling or dense_tiling(len(x_MK), *weight.shape)
    token, token_scale = quantize(x_MK, tiling.early)
    return product(token, token_scale, weight.unsqueeze(0), scale_N1, x_MK.dtype, tiling)


def dense_tiling(M: int, N: int, W: int) -> Tiling:
    """For one matrix."""
    if M <= 64:
        block_m = max(16, next_power_of_2(M))
        block_k = min(128, max(32, next_power_of_2(W)))
        parts = max(1, min(W // (4 * block_k), 264 * 64 // max(N, 64)))
        return Tiling(64, block_m, block_k, 1 << (parts.bit_length() - 1), 4, 5)
    return Tiling(128, 128, 128, 1, 8, 4)
