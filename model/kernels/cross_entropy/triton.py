"""Head projection and cross-entropy on CUDA: the contract is ``reference.linear_cross_entropy``.

The products are cuBLAS's; between them one kernel reads a chunk's logits once and, in the backward pass,
another turns them into their gradient in place. Only one chunk of logits exists at a time.

M tokens, D hidden, V vocabulary.
"""

import torch
import triton
import triton.language as tl

from model.kernels.cross_entropy.reference import IGNORE

# Logits held at once, in elements: 512 MiB in bfloat16.
CHUNK_LOGITS = 1 << 28


def linear_cross_entropy(x_MD: torch.Tensor, weight_VD: torch.Tensor, target_M: torch.Tensor) -> torch.Tensor:
    """As the reference: loss_M in float32."""
    return _LinearCrossEntropy.apply(x_MD, weight_VD, target_M)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, target):
        M, V = x.shape[0], weight.shape[0]
        loss = torch.empty(M, dtype=torch.float32, device=x.device)
        lse = torch.empty_like(loss)
        for rows in _chunks(M, V):
            logits = x[rows] @ weight.t()
            _loss_kernel[(logits.shape[0],)](
                logits, target[rows], loss[rows], lse[rows], V, IGNORE=IGNORE, BLOCK=_block(V), num_warps=8
            )
        ctx.save_for_backward(x, weight, target, lse)
        return loss

    @staticmethod
    def backward(ctx, grad_loss):
        x, weight, target, lse = ctx.saved_tensors
        V, grad_loss = weight.shape[0], grad_loss.float().contiguous()
        dx = torch.empty_like(x)
        dweight = torch.zeros_like(weight, dtype=torch.float32)
        for rows in _chunks(x.shape[0], V):
            logits = x[rows] @ weight.t()
            _gradient_kernel[(logits.shape[0], triton.cdiv(V, _block(V)))](
                logits,
                target[rows],
                lse[rows],
                grad_loss[rows],
                V,
                IGNORE=IGNORE,
                BLOCK=_block(V),
                num_warps=8,
            )
            torch.mm(logits, weight, out=dx[rows])
            dweight = _accumulate(dweight, logits.t(), x[rows])
        return dx, dweight.to(weight.dtype), None


def _accumulate(total, left, right):
    """``total + left @ right`` with the product kept in float32."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.addmm(total, left, right, out_dtype=torch.float32)
    return total.addmm_(left, right)


def _chunks(rows: int, vocabulary: int):
    step = max(1, CHUNK_LOGITS // vocabulary)
    return (slice(row, row + step) for row in range(0, rows, step))


def _block(vocabulary: int) -> int:
    return min(8192, triton.next_power_of_2(vocabulary))


@triton.jit
def _loss_kernel(logits, target, loss, lse, V, IGNORE: tl.constexpr, BLOCK: tl.constexpr):
    """Log-sum-exp and loss of one row."""
    row = tl.program_id(0).to(tl.int64)
    m = tl.full([], float("-inf"), tl.float32)
    norm = tl.zeros([], tl.float32)
    for v0 in range(0, V, BLOCK):
        v = v0 + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + v, mask=v < V, other=float("-inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(x))
        norm = norm * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    total = m + tl.log(norm)
    wanted = tl.load(target + row)
    own = tl.load(logits + row * V + tl.where(wanted == IGNORE, 0, wanted)).to(tl.float32)
    tl.store(loss + row, tl.where(wanted == IGNORE, 0.0, total - own))
    tl.store(lse + row, total)


@triton.jit
def _gradient_kernel(logits, target, lse, grad_loss, V, IGNORE: tl.constexpr, BLOCK: tl.constexpr):
    """Overwrites logits with ``(softmax - onehot) * grad_loss``."""
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = logits + row * V + v
    wanted = tl.load(target + row)
    factor = tl.where(wanted == IGNORE, 0.0, tl.load(grad_loss + row))
    x = tl.load(place, mask=v < V, other=0.0).to(tl.float32)
    p = tl.exp(x - tl.load(lse + row))
    grad = (p - tl.where(v == wanted, 1.0, 0.0)) * factor
    tl.store(place, grad.to(logits.dtype.element_ty), mask=v < V)
