"""Scales: the searches are at least as good as min-max, row by row, and find the best of their grids."""

import pytest
import torch

from model.quantization.rounding import QuantizedTensor, largest, minmax_scale, quantize_weight
from model.quantization.scales import clipped_scale, mse_scale, squared_error, ssz_scale


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


def exact(row: torch.Tensor, scale: float, bits: int) -> torch.Tensor:
    """The row's rounded values in float64."""
    most = largest(bits)
    return (row.double() / scale).round().clamp(-most, most) * scale


def least_of_grid(weight, found, bits, shares, error_of) -> int:
    """Checks row by row, in float64, that nothing on the grid has less error than the scale that was found.
    Returns how many rows are clipped.
    """
    for row, scale in zip(weight, found[:, 0].tolist(), strict=True):
        widest = float(row.abs().max()) / largest(bits)
        assert min(abs(scale / widest - share) for share in shares) < 1e-6
        errors = [error_of(row, exact(row, share * widest, bits)) for share in shares]
        assert error_of(row, exact(row, scale, bits)) <= min(errors) * (1 + 1e-4)
        assert min(errors) < max(errors)
    return int((found < 0.99 * minmax_scale(weight, bits)).sum())


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_the_clip_that_is_found_has_the_least_output_error_of_the_grid(bits):
    weight = torch.randn(24, 40) * torch.randn(24, 40).exp()
    rows = torch.randn(60, 40) * torch.rand(40)
    token_scale = rows.double().abs().amax(1, keepdim=True) / 127
    tokens = (rows.double() / token_scale).round() * token_scale

    def error(row, rounded):
        return float((tokens @ rounded - rows.double() @ row.double()).square().mean())

    found = clipped_scale(weight, rows, bits)
    assert found.shape == (24, 1) and found.dtype == torch.float32
    clipped = least_of_grid(weight, found, bits, [1 - 0.05 * step for step in range(10)], error)
    assert clipped > 8 or bits == 8


def test_a_large_weight_is_clipped_where_its_input_is_small():
    weight, rows = torch.rand(3, 32) - 0.5, torch.randn(200, 32)
    weight[:, 5] = 1.0
    loud, quiet = rows.clone(), rows.clone()
    loud[:, 5] *= 20.0
    quiet[:, 5] *= 0.01
    widest = minmax_scale(weight, 4)
    assert torch.equal(clipped_scale(weight, loud, 4), widest)
    assert (clipped_scale(weight, quiet, 4) < 0.7 * widest).all()
    assert torch.equal(clipped_scale(torch.zeros(2, 32), rows, 4), minmax_scale(torch.zeros(2, 32), 4))


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_the_searched_share_has_the_least_error_of_the_grid(bits):
    weight = torch.randn(24, 40) * torch.randn(24, 40).exp()

    def error(row, rounded):
        return float((rounded - row.double()).abs().pow(2.4).sum())

    found = mse_scale(weight, bits)
    clipped = least_of_grid(weight, found, bits, [1 - 0.01 * step for step in range(80)], error)
    assert clipped > 12 or bits == 8
    experts = torch.stack([weight, 2 * weight])
    torch.testing.assert_close(mse_scale(experts, bits), torch.stack([found, 2 * found]), rtol=1e-6, atol=0)
