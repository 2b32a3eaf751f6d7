"""Integer linear layers on CUDA: the contract is ``reference.int8_linear``, bit for bit.

M tokens, N output features, K input features, W bytes of a weight row.
"""

import torch
from triton import cdiv, next_power_of_2

from model.kernels.int8_linear.one_token import one_token, takes
from model.kernels.int8_linear.product import Tiling, product
from model.kernels.int8_linear.rows import quantize

MULTIPROCESSORS = 132  # of an H100 or H200: what the tiles of a small product should fill


def int8_linear(x_MK, weight, scale_N1, tiling: Tiling | None = None):
    """As the reference. ``tiling`` of the product."""
    x_MK = x_MK.contiguous()
    if tiling is None and takes(x_MK, weight):
        return one_token(x_MK, weight, scale_N1)
    tiling = tiling or dense_tiling(len(x_MK), *weight.shape, weight.dtype == torch.uint8)
    token, token_scale = quantize(x_MK, tiling.early)
    return product(token, token_scale, weight.unsqueeze(0), scale_N1, x_MK.dtype, tiling)


def dense_tiling(M: int, N: int, W: int, packed: bool) -> Tiling:
    """For one matrix; measured at GLM-5's shapes on an H200 (benchmarks/w4a8.py)."""
    if M > 64:
        few = cdiv(M, 128) * cdiv(N, 128) < 2 * MULTIPROCESSORS
        if few:
            return Tiling(64, 64, 128, 1, 4, 4)
        return Tiling(128, 128, 64, 1, 4, 5) if packed else Tiling(128, 128, 128, 1, 8, 4)
    block_m = max(16, next_power_of_2(M))
    block_k = min(256 if block_m == 16 else 128, max(32, next_power_of_2(W)))
    tiles = cdiv(N, 64)
    parts = max(1, min(MULTIPROCESSORS // tiles, W // (2 * block_k)))
    return Tiling(64, block_m, block_k, 1 << (parts.bit_length() - 1), 4, 6 if tiles < MULTIPROCESSORS else 4)
