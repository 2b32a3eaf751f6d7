"""What the sparse kernels read of a selection beside its indices."""

import torch
import triton
import triton.language as tl


def flatten(index_BTK: torch.Tensor, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 (B T, K): the selected rows counted over the whole batch of ``keys`` rows each, -1 for none; and
    int32 (B T): up to where a query's list goes, the last selected place + 1. Short lists end early: what
    lies behind costs nothing.
    """
    B, T, K = index_BTK.shape
    flat = torch.empty(B * T, K, dtype=torch.int32, device=index_BTK.device)
    used = torch.zeros(B * T, dtype=torch.int32, device=index_BTK.device)
    if flat.numel():
        _flatten_kernel[(B * T,)](
            index_BTK.contiguous(), flat, used, T, keys, K, BLOCK=triton.next_power_of_2(K), num_warps=4
        )
    return flat, used


@triton.jit
def _flatten_kernel(index, flat, used, T, keys, K, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    s = tl.load(index + row * K + lane, mask=lane < K, other=-1)
    tl.store(flat + row * K + lane, tl.where(s >= 0, s + (row // T).to(tl.int32) * keys, -1), mask=lane < K)
    tl.store(used + row, tl.max(tl.where(s >= 0, lane + 1, 0)))
