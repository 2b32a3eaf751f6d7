"""Integer linear layers on CUDA: the contract is ``reference.int8_linear``, bit for bit.

M tokens, N output features, K input features, W bytes of a weight row.
"""

import torch
from triton import cdiv, next_power_of_2

from model.kernels.int8_linear import hopper
from model.kernels.int8_linear.one_token import one_token, takes
from model.kernels.int8_linear.product import Tiling, product
from model.kernels.int8_linear.rows import MULTIPROCESSORS, quantize

SMALL = 2**24  # bytes of a weight that is read in less time than two kernels take to start


def int8_linear(x_MK, weight, scale_N1, tiling: Tiling | None = None):
    """As the reference. ``tiling`` of the product."""
    x_MK = x_MK.contiguous()
    if tiling is None and takes(x_MK, weight):
        return one_token(x_MK, weight, scale_N1)
    if tiling is None and (cut := hopper.cut(x_MK, weight)):
        return hopper.int8_linear(x_MK, weight, scale_N1, cut)
    tiling = tiling or dense_tiling(len(x_MK), *weight.shape, weight.dtype == torch.uint8)
    token, token_scale = quantize(x_MK, tiling.early)
    return product(token, token_scale, weight.unsqueeze(0), scale_N1, x_MK.dtype, tiling)


def dense_tiling(M: int, N: int, W: int, packed: bool) -> Tiling:
    """For one matrix; measured at GLM-5's shapes on an H200 (benchmarks/w4a8.py)."""
    if M > 64:
        if cdiv(M, 128) * cdiv(N, 128) < MULTIPROCESSORS:
            return Tiling(64, 64, 128, 1, 4, 4, early=False)
        return Tiling(128, 128, 64, 1, 4, 5, False) if packed else Tiling(128, 128, 128, 1, 8, 4, False)
    block_m, tiles = max(16, next_power_of_2(M)), cdiv(N, 64)
    if N * W > SMALL:
        return Tiling(64, block_m, _block(W, 128), _parts(2 * MULTIPROCESSORS // tiles, W), 4, 5, early=False)
    if block_m == 16:
        block_k, stages = (256, 6) if packed else (128, 8)
        return Tiling(64, 16, _block(W, block_k), _parts(64 // tiles, W), 4, stages)
    if MULTIPROCESSORS // 2 < tiles <= MULTIPROCESSORS:
        return Tiling(64, block_m, _block(W, 128), 1, 4, 6)
    parts = 4 if tiles <= MULTIPROCESSORS // 2 else 1
    return Tiling(64, block_m, _block(W, 128), _parts(parts, W), 4, 4 if packed else 5)


def _block(W: int, most: int) -> int:
    return min(most, max(32, next_power_of_2(W)))


def _parts(wanted: int, W: int) -> int:
    """A power of two, of at least 256 bytes of each row."""
    parts = max(1, min(wanted, W // 256))
    return 1 << (parts.bit_length() - 1)
