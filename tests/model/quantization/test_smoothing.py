"""Smoothing: what a factor does to the error, and that moving one changes nothing in float."""

import pytest
import torch
import torch.nn.functional as F

from model.quantization.calibration import Inputs
from model.quantization.pairs import Pair, move
from model.quantization.rounding import minmax_scale
from model.quantization.scales import ssz_scale
from model.quantization.smoothing import Score, awq, flex, search, smoothquant


def inputs_with_outliers(features: int, factor: float = 40.0) -> Inputs:
    x = torch.randn(200, features)
    x[:, :2] *= factor
    inputs = Inputs(features)
    inputs.add(x)
    return inputs


def matrices(features: int) -> list[torch.Tensor]:
    return [0.1 * torch.randn(12, features), 0.1 * torch.randn(7, features)]


@pytest.mark.parametrize("outliers", [1.0, 40.0])
def test_flex_awq_ssz_is_never_worse_than_ssz(outliers):
    inputs, weights = inputs_with_outliers(32, outliers), matrices(32)
    best = search(awq, inputs, weights, 4, ssz_scale)
    ones = torch.ones(32)
    score = Score(inputs.rows_NI, weights, 4, ssz_scale)
    assert best.plain_error == score(ones) and best.error == score(best.factor_I)
    assert best.error <= best.plain_error
    if outliers > 1:
        assert best.error < 0.5 * best.plain_error and best.factor_I[:2].min() > best.factor_I[2:].max()


def test_two_exponents_are_no_worse_than_smoothquants_own():
    inputs, weights = inputs_with_outliers(32), matrices(32)
    plain, best = (search(c, inputs, weights, 8, minmax_scale) for c in (smoothquant, flex))
    assert best.error <= plain.error * (1 + 1e-6) and best.error < 0.3 * best.plain_error


def test_scores_round_tokens_too():
    """With weights on the grid already, only the tokens' rounding is left, which smoothing lessens."""
    inputs = inputs_with_outliers(16, 100.0)
    weight = torch.randint(-127, 128, (5, 16)).float()
    weight[:, -1] = 127.0
    x = inputs.rows_NI
    error = Score(x, [weight], 8, minmax_scale)(torch.ones(16))
    assert error == pytest.approx(float(F.linear(_rounded(x) - x, weight).square().mean()), rel=1e-3)
    assert error > 0


def _rounded(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def test_features_that_are_always_zero():
    inputs = Inputs(8)
    inputs.add(torch.cat([torch.randn(50, 7), torch.zeros(50, 1)], 1))
    for candidates in (awq, flex, smoothquant):
        best = search(candidates, inputs, [torch.randn(4, 8)], 4, minmax_scale)
        assert best.factor_I.isfinite().all() and best.factor_I.gt(0).all()


def test_moving_a_factor_changes_nothing():
    gain, up, down = torch.rand(8).double() + 0.5, torch.randn(8, 5).double(), torch.randn(3, 8).double()
    x, factor = torch.randn(4, 5).double(), torch.rand(8) + 0.2
    expected = F.linear(F.linear(x, up), down), F.linear(torch.ones(8).double() * gain, down)
    for number, writer in enumerate((up.clone(), gain.clone())):
        reader = down.clone()
        move(Pair("pair", writer, {"down": reader}, [reader], Inputs(8), 8), factor)
        found = F.linear(F.linear(x, writer), reader) if number == 0 else F.linear(writer, reader)
        torch.testing.assert_close(found, expected[number])
