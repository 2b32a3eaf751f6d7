"""Attention over ranges and selections of keys against the float64 reference."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.masked_attention import reference
from model.kernels.masked_attention import triton as kernel


def packed(lengths: list[int], device) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and stop of documents of those lengths in one row."""
    start = torch.cat([torch.full((n,), sum(lengths[:i])) for i, n in enumerate(lengths)])
    return start.int().to(device), (torch.arange(sum(lengths)) + 1).int().to(device)


def results(operation, tensors, ranges, grad, dtype):
    leaves = [x.to(dtype).detach().clone().requires_grad_() for x in tensors]
    out, lse = operation(*leaves, 0.2, *ranges)
    out.backward(grad.to(dtype))
    return out.detach(), lse, *(leaf.grad for leaf in leaves)


@pytest.mark.parametrize("selected", [None, 9, 70])
def test_values_and_gradients(selected, device, dtype, bound, draw, error):
    """Packed documents (one of one token), a query that sees nothing, keys that fill no tile."""
    B, T, N, H, V = 2, 150, 2, 16, 32
    rows = [packed([70, 1, 79], device), packed([150], device)]
    start, stop = (torch.stack(part) for part in zip(*rows, strict=True))
    stop[1, 5] = start[1, 5]
    index = None
    if selected:
        noise = torch.rand(B, T, T, generator=torch.Generator().manual_seed(3)).to(device)
        key = torch.arange(T, device=device)
        seen = (key >= start.unsqueeze(-1)) & (key < stop.unsqueeze(-1))
        best = noise.masked_fill(~seen, -1.0).topk(selected)
        index = best.indices.masked_fill(best.values < 0, -1).int()
    tensors = [x.to(dtype) for x in (draw(B, T, N, H), draw(B, T, N, H), draw(B, T, N, V))]
    grad, ranges = draw(B, T, N, V), (start, stop, index)
    expected = results(reference.masked_attention, tensors, ranges, grad, torch.float64)
    actual = results(kernel.masked_attention, tensors, ranges, grad, dtype)
    assert not actual[0][1, 5].any() and torch.isneginf(actual[1][1, 5]).all()
    empty = torch.isneginf(expected[1])
    for value, wanted in zip(actual, expected, strict=True):
        assert error(value[~empty] if value.shape == empty.shape else value,
                     wanted[~empty] if wanted.shape == empty.shape else wanted) < bound  # fmt: skip
    again = results(kernel.masked_attention, tensors, ranges, grad, dtype)
    assert all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))


def test_fewer_queries_than_keys(device, dtype, bound, draw, error):
    """A window that does not start at key 0, and queries that fill no tile."""
    B, T, S, N, H, V = 1, 7, 200, 3, 16, 16
    stop = (torch.arange(T, device=device) * 20 + 75).int().unsqueeze(0)
    tensors = [x.to(dtype) for x in (draw(B, T, N, H), draw(B, S, N, H), draw(B, S, N, V))]
    grad, ranges = draw(B, T, N, V), (stop - 30, stop)
    expected = results(reference.masked_attention, tensors, ranges, grad, torch.float64)
    actual = results(kernel.masked_attention, tensors, ranges, grad, dtype)
    for value, wanted in zip(actual, expected, strict=True):
        assert error(value, wanted) < bound


@pytest.mark.gpu
@pytest.mark.parametrize("selected", [False, True])
def test_head_sizes_of_glm5(selected, draw, error):
    T, N = 700, 2
    start, stop = (x.unsqueeze(0) for x in packed([430, 270], "cuda"))
    index = None
    if selected:
        noise = torch.rand(1, T, T, generator=torch.Generator().manual_seed(4)).cuda()
        key = torch.arange(T, device="cuda")
        seen = (key >= start.unsqueeze(-1)) & (key < stop.unsqueeze(-1))
        best = noise.masked_fill(~seen, -1.0).topk(100)
        index = best.indices.masked_fill(best.values < 0, -1).int()
    tensors = [draw(1, T, N, 256).bfloat16() for _ in range(3)]
    grad, ranges = draw(1, T, N, 256), (start, stop, index)
    expected = results(reference.masked_attention, tensors, ranges, grad, torch.float64)
    actual = results(kernel.masked_attention, tensors, ranges, grad, torch.bfloat16)
    for value, wanted in zip(actual, expected, strict=True):
        assert error(value, wanted) < 1e-2
