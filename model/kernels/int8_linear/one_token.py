"""An integer linear layer of a single token on CUDA: the contract is ``reference.int8_linear``, bit for bit.

A pass of one kernel, since starting two takes as long as reading a weight of a few million values. Every
program rounds the whole token for itself while its weights are on the way, and multiplies four bytes at a
time (dp4a). Weights are read before the kernel in front has ended: that one must not be what writes them.

K input features, N output features, W bytes of a weight row.
"""

import torch
import triton
import triton.language as tl

from model.kernels.int8_linear.rows import FLOOR, ROUND, divide, launch

LONGEST = 8192  # bytes of a weight row; for longer ones every program would round too much of the token
WORDS = 32  # of weights in a thread's registers


def takes(x_MK, weight) -> bool:
    """Whether it is one token, and the rows are whole words of a fitting length."""
    return len(x_MK) == 1 and weight.shape[1] % 4 == 0 and weight.shape[1] <= LONGEST


def one_token(x_1K, weight, scale_N1, outputs: int = 0, warps: int = 0):
    """As the reference, of one token. ``outputs`` of a program, by default as many as it has room for."""
    N, W = weight.shape
    block = triton.next_power_of_2(W // 4)
    warps = warps or (8 if block <= 1024 else 16)
    outputs = outputs or min(32, WORDS * 32 * warps // block)
    out = torch.empty(1, N, dtype=x_1K.dtype, device=x_1K.device)
    _one_token_kernel[(triton.cdiv(N, outputs),)](
        x_1K, weight.view(torch.int32), scale_N1, out, N=N, W=W, PACKED=weight.dtype == torch.uint8,
        BLOCK_N=outputs, BLOCK=block, num_warps=warps, **launch(early=True),
    )  # fmt: skip
    return out


@triton.jit
def _one_token_kernel(
    x, weight, scale, out, N: tl.constexpr, W: tl.constexpr, PACKED: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    word = tl.arange(0, BLOCK)
    at = tl.minimum(n, N - 1)[:, None] * (W // 4) + word[None, :]
    w = tl.load(weight + at, mask=(word < W // 4)[None, :], other=0)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    most = _largest(x, word, W)
    if PACKED:
        most = tl.maximum(most, _largest(x + W, word, W))
    s = tl.maximum(tl.div_rn(tl.max(most), 127.0), FLOOR)
    total = tl.zeros([BLOCK_N, BLOCK], tl.int32)
    if PACKED:
        low = (w << 4) & -252645136  # 0xF0 in every byte
        total = _dot4(low, _rounded(x, word, s, W, COMPILED)[None, :], total, COMPILED)
        total = _dot4(w & -252645136, _rounded(x + W, word, s, W, COMPILED)[None, :], total, COMPILED)
        sums = tl.sum(total, 1) >> 4
    else:
        sums = tl.sum(_dot4(w, _rounded(x, word, s, W, COMPILED)[None, :], total, COMPILED), 1)
    value = sums.to(tl.float32) * s * tl.load(scale + n, mask=n < N, other=0.0)
    tl.store(out + n, value.to(out.dtype.element_ty), mask=n < N)


@triton.jit
def _largest(x, word, W: tl.constexpr):
    """Largest magnitude of each four features."""
    most = tl.zeros(word.shape, tl.float32)
    for j in tl.static_range(4):
        value = tl.load(x + word * 4 + j, mask=word < W // 4, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(value))
    return most


@triton.jit
def _rounded(x, word, s, W: tl.constexpr, COMPILED: tl.constexpr):
    """Each four features as int8 in one word."""
    packed = tl.zeros(word.shape, tl.int32)
    for j in tl.static_range(4):
        value = tl.load(x + word * 4 + j, mask=word < W // 4, other=0.0).to(tl.float32)
        rounded = (divide(value, s, COMPILED) + ROUND) - ROUND
        packed |= (tl.minimum(tl.maximum(rounded, -127.0), 127.0).to(tl.int32) & 255) << (8 * j)
    return packed


@triton.jit
def _dot4(a, b, total, COMPILED: tl.constexpr):
    """total plus the sum of four products of int8."""
    a, b = tl.broadcast(a, b)
    if COMPILED:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1
        )
    for j in tl.static_range(4):
        total += ((a << (24 - 8 * j)) >> 24) * ((b << (24 - 8 * j)) >> 24)
    return total
