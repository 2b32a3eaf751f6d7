"""The passes of a Muon step around Newton-Schulz on CUDA, each once over its tensors: the contract is
``reference.py``.
"""

import torch
import triton
import triton.language as tl

BLOCK = 64


@torch.no_grad()
def nesterov_direction(
    momentum_LRC: torch.Tensor, grad_LRC: torch.Tensor, decay: float, out_LAB: torch.Tensor
) -> torch.Tensor:
    """As the reference; the norms are those of tiles, before ``out`` is rounded."""
    L, R, C = momentum_LRC.shape
    tiles = triton.cdiv(R, BLOCK) * triton.cdiv(C, BLOCK)
    norms = torch.empty(L, tiles, dtype=torch.float32, device=out_LAB.device)
    _direction_kernel[(tiles, L)](
        momentum_LRC, grad_LRC, out_LAB, norms, decay, R, C, *_strides(out_LAB, R, C), BLOCK=BLOCK
    )
    return norms


@torch.no_grad()
def decayed_update(weight_LRC: torch.Tensor, update_LAB: torch.Tensor, decay: float, step: float) -> None:
    """As the reference."""
    L, R, C = weight_LRC.shape
    tiles = triton.cdiv(R, BLOCK) * triton.cdiv(C, BLOCK)
    _update_kernel[(tiles, L)](
        weight_LRC, update_LAB, decay, step, R, C, *_strides(update_LAB, R, C), BLOCK=BLOCK
    )


def _strides(x_LAB: torch.Tensor, rows: int, columns: int) -> tuple[int, int]:
    """Between two rows and two columns of a block, as they lie in x."""
    _, row, column = x_LAB.stride()
    return (row, column) if rows <= columns else (column, row)


@triton.jit
def _tile(R, C, stride_r, stride_c, BLOCK: tl.constexpr):
    """Places of a tile's elements in the parameter and in the batch, and which of them there are."""
    across = tl.cdiv(C, BLOCK)
    r = (tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    c = (tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    start = tl.program_id(1).to(tl.int64) * R * C
    return start + r * C + c, start + r * stride_r + c * stride_c, (r < R) & (c < C)


@triton.jit
def _direction_kernel(momentum, grad, out, norms, decay, R, C, stride_r, stride_c, BLOCK: tl.constexpr):
    place, target, mask = _tile(R, C, stride_r, stride_c, BLOCK)
    g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
    m = decay * tl.load(momentum + place, mask=mask, other=0.0).to(tl.float32) + g
    tl.store(momentum + place, m, mask=mask)
    direction = g + decay * m
    tl.store(out + target, direction.to(out.dtype.element_ty), mask=mask)
    tile = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(norms + tile, tl.sqrt(tl.sum(direction * direction)))


@triton.jit
def _update_kernel(weight, update, decay, step, R, C, stride_r, stride_c, BLOCK: tl.constexpr):
    place, source, mask = _tile(R, C, stride_r, stride_c, BLOCK)
    w = tl.load(weight + place, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(update + source, mask=mask, other=0.0).to(tl.float32)
    tl.store(weight + place, decay * w + step * u, mask=mask)
