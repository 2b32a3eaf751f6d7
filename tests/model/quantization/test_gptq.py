"""GPTQ against rounding to nearest, on inputs whose features go together."""

import pytest
import torch

from model.quantization.gptq import BLOCK, gptq
from model.quantization.rounding import dequantize, minmax_scale, quantize_weight


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
    scale = minmax_scale(weight, bits)
    nearest = dequantize(quantize_weight(weight, scale, bits), scale)
    found = gptq(weight, x.double().T @ x.double(), bits)
    assert torch.equal(found.scale, scale)
    assert output_error(x, weight, found.dequantize()) < 0.6 * output_error(x, weight, nearest)
    assert output_error(fresh, weight, found.dequantize()) < 0.7 * output_error(fresh, weight, nearest)


def test_independent_inputs_leave_rounding_to_nearest():
    weight = torch.randn(6, 16)
    scale = minmax_scale(weight, 4)
    found = gptq(weight, torch.diag(torch.rand(16) + 0.5).double(), 4)
    assert torch.equal(found.values, quantize_weight(weight, scale, 4))


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
