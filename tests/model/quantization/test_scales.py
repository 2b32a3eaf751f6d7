"""Scales: the search is at least as good as min-max, row by row."""

import pytest
import torch

from model.quantization.rounding import QuantizedTensor, minmax_scale, quantize_weight
from model.quantization.scales import squared_error, ssz_scale


@pytest.fixture
def weight():
    """Heavy tails, rows of very different sizes, and a row of zeros."""
    weight = torch.randn(3, 20, 64) * torch.randn(3, 20, 64).exp() * torch.rand(3, 20, 1)
    weight[0, 0] = 0.0
    return weight


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_never_worse_than_minmax_and_better_somewhere(weight, bits):
    widest, found = minmax_scale(weight, bits), ssz_scale(weight, bits)
    before, after = squared_error(weight, widest, bits), squared_error(weight, found, bits)
    assert found.shape == widest.shape and found.dtype == torch.float32
    assert (after <= before).all()
    assert bits == 8 or (after < 0.97 * before).sum() > 5
    QuantizedTensor(quantize_weight(weight, found, bits), found, bits)


def test_ssz_ends_in_a_fixed_point():
    """There the scale is the one of least squares for its own integers."""
    weight = torch.randn(8, 48)
    scale = ssz_scale(weight, 4, steps=200)
    q = quantize_weight(weight, scale, 4).float()
    fitted = (weight * q).sum(-1, keepdim=True) / q.square().sum(-1, keepdim=True)
    best = squared_error(weight, fitted, 4)
    assert (squared_error(weight, scale, 4) <= best * (1 + 1e-5)).all()


def test_more_steps_are_never_worse(weight):
    errors = [squared_error(weight, ssz_scale(weight, 4, steps=steps), 4) for steps in (0, 1, 3, 10)]
    assert torch.equal(errors[0], squared_error(weight, minmax_scale(weight, 4), 4))
    assert all((b <= a).all() for a, b in zip(errors, errors[1:], strict=False))
