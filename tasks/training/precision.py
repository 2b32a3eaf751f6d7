"""What is computed narrowly on CUDA."""

import torch


def narrow(device: torch.device) -> torch.autocast:
    """On CUDA matrix products take bfloat16; weights, residual stream and optimizer stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
