"""GPTQ against rounding to nearest, against its own definition and against all integers there are."""

import itertools

import pytest
import torch

from model.quantization.gptq import BLOCK, DAMPING
from model.quantization.gptq import gptq as gptq_of_many
from model.quantization.rounding import QuantizedTensor, dequantize, largest, quantize_weight
from model.quantization.scales import mse_scale


def gptq(weight, hessian, bits: int) -> QuantizedTensor | None:
    """One matrix; None where it has no factor, and then it is rounded to nearest."""
    found, failed = gptq_of_many(weight.unsqueeze(0), hessian.unsqueeze(0), bits)
    one = QuantizedTensor(found.values[0], found.scale[0], bits)
    if not failed:
        return one
    assert torch.equal(one.values, quantize_weight(weight, mse_scale(weight, bits), bits))
    return None


def correlated(rows: int, features: int) -> torch.Tensor:
    return torch.randn(rows, features // 4) @ torch.randn(features // 4, features) + 0.3 * torch.randn(
        rows, features
    )


def output_error(x, weight, rounded) -> float:
    return float(((rounded - weight) @ x.T).square().mean())


@pytest.mark.parametrize("features", [40, BLOCK + 24])
@pytest.mark.parametrize("bits", [3, 4])
def test_less_output_error_than_rounding_to_nearest(features, bits):
    x, fresh, weight = correlated(600, features), None, torch.randn(24, features)
    x, fresh = x[:400], x[400:]
    scale = mse_scale(weight, bits)
    nearest = dequantize(quantize_weight(weight, scale, bits), scale)
    found = gptq(weight, x.double().T @ x.double(), bits)
    assert torch.equal(found.scale, scale)
    assert output_error(x, weight, found.dequantize()) < 0.6 * output_error(x, weight, nearest)
    assert output_error(fresh, weight, found.dequantize()) < 0.7 * output_error(fresh, weight, nearest)


def test_independent_inputs_leave_rounding_to_nearest():
    weight = torch.randn(6, 16)
    scale = mse_scale(weight, 4)
    found = gptq(weight, torch.diag(torch.rand(16) + 0.5).double(), 4)
    assert torch.equal(found.values, quantize_weight(weight, scale, 4))


def damped(hessian: torch.Tensor) -> torch.Tensor:
    return hessian + DAMPING * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=torch.float64)


def objective(weight, found: QuantizedTensor, hessian) -> torch.Tensor:
    """Squared output error of every row, float64."""
    error = weight.double() - found.values * found.scale.double()
    return ((error @ hessian) * error).sum(1)


@pytest.mark.parametrize("bits", [2, 4])
def test_each_column_is_rounded_and_its_error_spread_as_the_definition_says(bits):
    """Optimal brain quantisation in a fixed order (the paper's eq. 2), with an inverse for every column."""
    x, weight = correlated(200, 24), torch.randn(7, 24)
    hessian = x.double().T @ x.double()
    found = gptq(weight, hessian, bits)
    rest, H = weight.double().clone(), damped(hessian)
    left = hessian.diagonal().argsort(descending=True).tolist()
    while left:
        column, inverse = left[0], torch.linalg.inv(H[left][:, left])
        q = quantize_weight(rest[:, [column]], found.scale, bits)
        assert torch.equal(found.values[:, [column]], q)
        error = (rest[:, [column]] - q * found.scale.double()) / inverse[0, 0]
        rest[:, left] -= error * inverse[0]
        left = left[1:]


@pytest.mark.parametrize("bits,features", [(2, 8), (3, 5)])
def test_between_the_best_integers_there_are_and_rounding_to_nearest(bits, features):
    mixed = torch.randn(300, features) + 2 * torch.randn(300, 1)
    weight, hessian = torch.randn(40, features), mixed.double().T @ mixed.double()
    found, H = gptq(weight, hessian, bits), damped(hessian)
    nearest = QuantizedTensor(quantize_weight(weight, found.scale, bits), found.scale, bits)
    integers = range(-largest(bits), largest(bits) + 1)
    every = torch.tensor(list(itertools.product(integers, repeat=features)), dtype=torch.float64)
    ours, rounded = objective(weight, found, H), objective(weight, nearest, H)
    for row, scale, own in zip(weight.double(), found.scale.double(), ours, strict=True):
        error = row - scale * every
        assert own >= ((error @ H) * error).sum(1).min() * (1 - 1e-9)
    assert ours.sum() < 0.7 * rounded.sum()


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_in_sum_never_worse_than_rounding_on_its_own_objective(bits):
    for _ in range(10):
        x, weight = correlated(150, 32) * torch.rand(32), torch.randn(20, 32) * torch.randn(20, 32).exp()
        hessian = x.double().T @ x.double()
        found = gptq(weight, hessian, bits)
        nearest = QuantizedTensor(quantize_weight(weight, found.scale, bits), found.scale, bits)
        assert objective(weight, found, hessian).sum() <= objective(weight, nearest, hessian).sum()


def test_blocks_give_what_one_block_gives(monkeypatch):
    x, weight = correlated(300, 48), torch.randn(5, 48)
    hessian = x.double().T @ x.double()
    whole = gptq(weight, hessian, 4)
    monkeypatch.setattr("model.quantization.gptq.BLOCK", 16)
    assert torch.equal(gptq(weight, hessian, 4).values, whole.values)


def test_inputs_that_are_always_zero_and_hessians_that_are_broken():
    x, weight = correlated(100, 16), torch.randn(4, 16)
    x[:, 3] = 0.0
    assert gptq(weight, x.double().T @ x.double(), 4).values[:, 3].abs().max() > 0
    negative = -torch.ones(16, 16).double() + torch.eye(16)
    assert gptq(weight, negative, 4) is None
    assert gptq(weight, torch.full((16, 16), float("nan")).double(), 4) is None


def test_many_at_once_are_each_as_alone():
    weights = torch.randn(4, 6, 40)
    rows = [correlated(200, 40).double() for _ in range(4)]
    hessians = torch.stack([x.T @ x for x in rows])
    hessians[2] = float("nan")
    found, failed = gptq_of_many(weights, hessians, 4)
    assert failed.tolist() == [False, False, True, False]
    for number in range(4):
        alone, _ = gptq_of_many(weights[number : number + 1], hessians[number : number + 1], 4)
        assert torch.equal(found.values[number], alone.values[0])
        assert torch.equal(found.scale[number], alone.scale[0])
