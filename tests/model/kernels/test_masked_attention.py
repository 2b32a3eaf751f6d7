"""Attention over ranges and selections of keys against the float64 reference."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.masked_attention import hopper, reference
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


@pytest.mark.parametrize("selected", [False, True])
def test_seen_keys_as_bits(selected, device):
    """What the gradients' kernel for Hopper reads: ranges that end inside a word, at its end, and none."""
    T, S = 70, 150
    generator = torch.Generator().manual_seed(6)
    start = torch.randint(0, S, (1, T), generator=generator).int().to(device)
    stop = (start + torch.randint(0, 90, (1, T), generator=generator).to(device)).clamp(max=S).int()
    start[0, :2], stop[0, :2] = 32, torch.tensor([64, 32])
    key = torch.arange(S, device=device)
    wanted = (key >= start.unsqueeze(-1)) & (key < stop.unsqueeze(-1))
    bits = None
    if selected:
        chosen = torch.rand(1, T, S, generator=generator).argsort(-1)[..., :40].int().to(device)
        bits = kernel.selection_bits(chosen, S)
        wanted &= torch.zeros_like(wanted).scatter_(-1, chosen.long(), True)
    seen, bounds = hopper.seen_keys(start, stop, bits, S)
    word, lane = seen[..., key // 32], key % 32
    assert torch.equal((word >> lane & 1).bool(), wanted)
    see = torch.nn.functional.pad(wanted, (0, 42)).unflatten(-1, (3, 64)).any(-1)[0]
    if not selected:
        for block in range(3):
            (queries,) = see[:, block].nonzero(as_tuple=True)
            assert bounds[0, block].tolist() == [int(queries[0]), int(queries[-1]) + 1]


@pytest.mark.gpu
def test_few_queries_at_head_sizes_of_glm5(draw, error):
    """Keys that no query sees have no gradient."""
    T, S, N = 5, 300, 3
    stop = (torch.arange(T, device="cuda") * 20 + 175).int().unsqueeze(0)
    tensors = [x.bfloat16() for x in (draw(1, T, N, 256), draw(1, S, N, 256), draw(1, S, N, 256))]
    grad, ranges = draw(1, T, N, 256), (stop - 70, stop)
    expected = results(reference.masked_attention, tensors, ranges, grad, torch.float64)
    actual = results(kernel.masked_attention, tensors, ranges, grad, torch.bfloat16)
    for value, wanted in zip(actual, expected, strict=True):
        assert error(value, wanted) < 1e-2
    assert not actual[3][:, 255:].any() and not actual[4][:, 255:].any()


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
