"""Where the kernels for Hopper run: they are written in Gluon, Triton's lower-level dialect."""

import torch
import triton

# Gluon is experimental and its names change (3.9 no longer has these copies): with another release of Triton
# than the one they were tested with, the plain kernels run.
TRITON = "3.6."


def available(x: torch.Tensor) -> bool:
    """Whether such kernels take tensors like this one: bfloat16 on a card of compute capability 9."""
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and triton.__version__.startswith(TRITON)
        and torch.cuda.get_device_capability(x.device)[0] == 9
    )
