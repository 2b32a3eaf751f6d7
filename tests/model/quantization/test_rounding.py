"""Rounding: halves to even, clamped, one scale a row, the same bits from every entry."""

import pytest
import torch

from model.quantization.rounding import (
    WEIGHT_FLOOR,
    QuantizedTensor,
    dequantize,
    fake_quantize,
    largest,
    minmax_scale,
    quantize_tokens,
    quantize_weight,
)


def test_halves_go_to_even_and_the_range_is_symmetric():
    weight = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 6.5, 100.0, -100.0]])
    values = quantize_weight(weight, torch.ones(1, 1), 4)
    assert values.dtype == torch.int8
    assert values.tolist() == [[0, 2, 2, 0, -2, -2, 6, 7, -7]]


@pytest.mark.parametrize("bits", [4, 8])
def test_error_is_at_most_half_a_step(bits):
    weight = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(bits))
    scale = minmax_scale(weight, bits)
    values = quantize_weight(weight, scale, bits)
    assert scale.shape == (3, 5, 1) and values.abs().amax(-1).eq(largest(bits)).all()
    assert ((dequantize(values, scale) - weight).abs() <= scale * 0.5 * (1 + 1e-5)).all()


def test_zero_rows_stay_zero():
    scale = minmax_scale(torch.zeros(2, 4), 4)
    assert scale.eq(WEIGHT_FLOOR).all() and quantize_weight(torch.zeros(2, 4), scale, 4).eq(0).all()
    values, scale = quantize_tokens(torch.zeros(2, 4))
    assert values.eq(0).all() and scale.gt(0).all()


def test_tokens_have_their_own_scale_however_small():
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    values, scale = quantize_tokens(x * torch.tensor([1e-6, 1e-3, 1, 10, 1e3, 1e6])[:, None])
    # The same row at six sizes up to the last bits of a product: no integer is off by more than one.
    reference, _ = quantize_tokens(x)
    assert (values.int() - reference.int()).abs().max() <= 1
    assert values.abs().amax(-1).eq(127).all() and scale.shape == (6, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_sees_the_bits_that_are_stored(dtype):
    weight = torch.randn(4, 16, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    scale = minmax_scale(weight.detach(), 4)
    stored = QuantizedTensor(quantize_weight(weight.detach(), scale, 4), scale, 4)
    faked = fake_quantize(weight, 4)
    assert faked.dtype == dtype and torch.equal(faked.detach(), stored.dequantize(dtype))
    gradient = torch.randn(4, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    (faked * gradient).sum().backward()
    assert torch.equal(weight.grad, gradient)


def test_wrong_tensors_are_named():
    values, scale = torch.zeros(4, 8, dtype=torch.int8), torch.ones(4, 1)
    with pytest.raises(ValueError, match=r"one scale a row, \(4, 1\), and these have \(4, 2\)"):
        QuantizedTensor(values, torch.ones(4, 2), 4)
    with pytest.raises(ValueError, match="int8 with float32 scales"):
        QuantizedTensor(values, scale.double(), 4)
    with pytest.raises(ValueError, match="2 to 8 bits, not 9"):
        QuantizedTensor(values, scale, 9)
