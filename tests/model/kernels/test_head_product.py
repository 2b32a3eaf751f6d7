"""The products per head that write in place on CUDA, against the operations that a CPU takes."""

import pytest
import torch

from model.attention.mla import _by_head, _HeadProduct


@pytest.mark.parametrize("tail", [0, 3])
def test_values_and_gradients(tail):
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(2, 5, 4, 6 + tail, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(4, 6, 7, dtype=torch.float64, generator=generator).requires_grad_()
    grad = torch.randn(2, 5, 4, 7 + tail, dtype=torch.float64, generator=generator)
    expected = _by_head(x, weight, tail)
    wanted = torch.autograd.grad(expected, (x, weight), grad)
    out = _HeadProduct.apply(x, weight, tail)
    assert out.is_contiguous()
    torch.testing.assert_close(out, expected)
    for value, gradient in zip(torch.autograd.grad(out, (x, weight), grad), wanted, strict=True):
        torch.testing.assert_close(value, gradient)
