"""What is computed narrowly on CUDA."""

import torch

from model.transformer import Transformer


def narrow(device: torch.device) -> torch.autocast:
    """On CUDA matrix products take bfloat16; weights, residual stream and optimizer stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def for_inference(model: Transformer) -> Transformer:
    """On CUDA the weights as bfloat16, but the routers' biases, whose small steps it would swallow."""
    if model.embed.weight.is_cuda:
        biases = [router.bias for router in model.routers()]
        model.to(torch.bfloat16)
        for router, bias in zip(model.routers(), biases, strict=True):
            router.bias = bias
    return model
