"""Passes over the rows of a matrix, a program a row, and what all kernels of integer layers share.

M tokens, K features.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from model.quantization.rounding import TOKEN_FLOOR

FLOOR = tl.constexpr(TOKEN_FLOOR)
MULTIPROCESSORS = 132  # of an H100 or H200: what the programs of a small product should fill
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number, halves to even


def quantize(x_MK, early: bool = False):
    """``rounding.quantize_tokens``: int8 (M, K), float32 (M, 1). ``early``: a product may begin beside it."""
    M, K = x_MK.shape
    values = torch.empty(M, K, dtype=torch.int8, device=x_MK.device)
    scale = torch.empty(M, 1, dtype=torch.float32, device=x_MK.device)
    if M:
        _quantize_kernel[(M,)](x_MK, values, scale, K=K, **row_block(K, early))
    return values, scale


def row_block(columns: int, early: bool) -> dict:
    """A whole row in one program."""
    block = max(16, triton.next_power_of_2(columns))
    return dict(BLOCK=block, num_warps=max(1, min(16, block // 512)), **launch(early))


def launch(early: bool) -> dict:
    """Options of every kernel here. ``early``: it may be started before the kernel in front of it has ended,
    and waits for that one's end itself (Hopper's programmatic dependent launch).
    """
    early = early and not INTERPRETED and torch.cuda.get_device_capability()[0] >= 9
    options = dict(EARLY=early, COMPILED=not INTERPRETED, enable_fp_fusion=False)
    return options | (dict(launch_pdl=True) if early else {})


def counters(kept: dict, key, count: int, device: torch.device) -> torch.Tensor:
    """At least ``count`` int32, zeros at first, kept under ``key`` for the products that follow one another:
    on two streams at once they would count together. Those made while a CUDA graph is captured are the
    graph's own, since only its replays set them to zero.
    """
    found = kept.get(key)
    if found is None or len(found) < count:
        found = torch.zeros(count, dtype=torch.int32, device=device)
        if not (found.is_cuda and torch.cuda.is_current_stream_capturing()):
            kept[key] = found
    return found


@triton.jit
def _quantize_kernel(
    x, values, scale, K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr, COMPILED: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    begin(EARLY)
    value = tl.load(x + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    quantize_row(value, values + row * K, scale + row, k, K, COMPILED)


@triton.jit
def quantize_row(x, values, scale, k, K: tl.constexpr, COMPILED: tl.constexpr):
    """Store a row as int8 with its scale."""
    s = tl.maximum(tl.div_rn(tl.max(tl.abs(x)), 127.0), FLOOR)
    rounded = (divide(x, s, COMPILED) + ROUND) - ROUND
    tl.store(values + k, tl.minimum(tl.maximum(rounded, -127.0), 127.0).to(tl.int8), mask=k < K)
    tl.store(scale, s)


@triton.jit
def divide(x, y, COMPILED: tl.constexpr):
    """x / y, correctly rounded wherever the quotient and its error are normal numbers. Without the special
    cases of ``div_rn``, which take a slow way for every zero.
    """
    if COMPILED:
        inverse = 1.0 / y
        inverse = tl.fma(tl.fma(-y, inverse, 1.0), inverse, inverse)
        quotient = x * inverse
        quotient = tl.fma(tl.fma(-quotient, y, x), inverse, quotient)
        return tl.fma(tl.fma(-quotient, y, x), inverse, quotient)
    return tl.div_rn(x, y)


@triton.jit
def begin(EARLY: tl.constexpr):
    """Let the next kernel start, and wait for the one before."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


INTERPRETED = isinstance(_quantize_kernel, InterpretedFunction)
