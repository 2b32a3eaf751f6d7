"""Products that decide something (which expert, which key) are float32, whatever surrounds them."""

import torch
import torch.nn.functional as F


def wide_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``F.linear`` in float32 (float64 for float64 inputs), also under autocast."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    if not torch.is_autocast_enabled(x.device.type):
        return F.linear(x.to(dtype), weight.to(dtype))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(dtype), weight.to(dtype))
