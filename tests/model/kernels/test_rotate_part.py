"""Rotation of a part of the features against the float64 reference."""

import pytest
import torch

pytest.importorskip("triton")

from model.attention.rope import rope_table
from model.kernels.rope import reference
from model.kernels.rope import triton as kernel


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("first", [0, 16])
@pytest.mark.parametrize("tables", [1, 2])
def test_values_and_gradients(heads, first, tables, device, dtype, bound, draw, error):
    B, T, H, R = 2, 5, 32, 8
    x = draw(B, T, heads, H) if heads else draw(B, T, H)
    position = torch.arange(tables * T, device=device).view(tables, T)
    turn = rope_table(position, R, 100.0)
    leaf = x.to(dtype).requires_grad_()
    grad = draw(*x.shape).to(dtype)
    kernel.rotate_part(leaf, turn, first).backward(grad)
    exact = leaf.detach().double().requires_grad_()
    expected = reference.rotate_part(exact, turn.to(torch.complex128), first)
    expected.backward(grad.double())
    out = kernel.rotate_part(leaf.detach(), turn, first)
    assert error(out, expected.detach()) < bound and error(leaf.grad, exact.grad) < bound
    still = [i for i in range(H) if not first <= i < first + R]
    assert torch.equal(out[..., still], leaf.detach()[..., still])
