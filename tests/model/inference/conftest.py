"""Small random models for the engine's tests."""

import sys
from pathlib import Path

import pytest
import torch

from model.transformer import Transformer

sys.path.append(str(Path(__file__).parents[1]))

from shapes import small_config


@pytest.fixture
def tiny_model(make_model):
    """``tiny_model(seed, dtype)``: sparse attention that really selects, and an MTP block."""

    def make(seed: int = 0, dtype=torch.float32, **changes) -> Transformer:
        config = small_config(seed, num_layers=2, index_top_k=7, max_positions=128, **changes)
        return make_model(config, seed, indexer=True, dtype=dtype)

    return make
