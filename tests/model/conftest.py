import zlib

import pytest
import torch

from model.config import ModelConfig
from model.transformer import Transformer


@pytest.fixture(autouse=True)
def seeded(request):
    """Every test draws its own numbers, the same in every run and order."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def make_model():
    """Build a model with matrices so large that every path matters, and with biased routers."""

    def make(
        config: ModelConfig, seed: int = 0, *, indexer: bool = False, dtype=torch.float32
    ) -> Transformer:
        model = Transformer(config, seed=seed, indexer=indexer)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in model.parameters():
                if value.dim() > 1:
                    value.mul_(8)
                else:
                    value.add_(0.1 * torch.randn(value.shape, generator=generator))
            for router in model.routers():
                router.bias.copy_(0.2 * torch.randn(router.bias.shape, generator=generator))
        return model.to(dtype)

    return make
