"""Indexer losses and their gradients against the float64 reference."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.indexer_loss import reference
from model.kernels.indexer_loss import triton as kernel
from model.kernels.sparse_mla import reference as attention_reference
from model.kernels.sparse_mla import triton as attention

SCALE = 0.3


def run(operation, leading, indexer, trailing, dtype):
    """Loss and gradients to the indexer's tensors."""
    leaves = [x.to(dtype).detach().clone().requires_grad_() for x in indexer]
    loss = operation(*leading, *leaves, *trailing)
    (loss * 3.0).backward()
    return [loss.detach(), *(x.grad for x in leaves)]


def dense(module, main, indexer, ranges, dtype):
    leading = [*(x.to(dtype) for x in main), SCALE]
    return run(module.dense_indexer_loss, leading, indexer, ranges, dtype)


def sparse(module, target, indexer, index, dtype):
    leading = [target.to(torch.promote_types(dtype, torch.float32))]
    return run(module.sparse_indexer_loss, leading, indexer, [index], dtype)


def check(actual, expected, bound, error):
    assert float(actual[0] - expected[0]) == pytest.approx(0.0, abs=bound * float(expected[0]))
    for value, wanted in zip(actual[1:], expected[1:], strict=True):
        assert error(value, wanted) < 3 * bound


def test_dense(device, dtype, bound, draw, error):
    B, T, S, N, H, I, J = 2, 11, 70, 3, 16, 4, 16
    main = [draw(B, T, N, H).to(dtype), draw(B, S, N, H).to(dtype)]
    indexer = [draw(B, T, I, J).to(dtype), draw(B, S, J).to(dtype), draw(B, T, I).to(dtype)]
    stop = (torch.arange(T, device=device) * 6 + 3).clamp(max=S).int().repeat(B, 1)
    start = torch.where(torch.arange(T, device=device) > 5, 20, 0).int().repeat(B, 1)
    stop[0, 3] = start[0, 3]  # sees nothing
    stop[1, 7] = start[1, 7] + 1  # a one-token document
    expected = dense(reference, main, indexer, (start, stop), torch.float64)
    check(dense(kernel, main, indexer, (start, stop), dtype), expected, bound, error)


def test_dense_in_chunks(device, dtype, bound, draw, error, monkeypatch):
    monkeypatch.setattr(kernel, "WORKSPACE", 128 * 4 * 140)
    T = 140
    main = [draw(1, T, 1, 16).to(dtype), draw(1, T, 1, 16).to(dtype)]
    indexer = [draw(1, T, 2, 16).to(dtype), draw(1, T, 16).to(dtype), draw(1, T, 2).to(dtype)]
    stop = (torch.arange(T, device=device) + 1).int().unsqueeze(0)
    expected = dense(reference, main, indexer, (stop * 0, stop), torch.float64)
    check(dense(kernel, main, indexer, (stop * 0, stop), dtype), expected, bound, error)


@pytest.fixture
def fixed(request):
    """Whether the sums have a fixed order."""
    torch.use_deterministic_algorithms(request.param, warn_only=True)
    yield request.param
    torch.use_deterministic_algorithms(False)


def selection(B, T, S, K, device):
    """K random keys for each query, fewer where there are no more; query 1 of the first row selects nothing,
    query 2 of the last a few at most, and query 3 has holes.
    """
    order = torch.rand(B, T, max(S, K), generator=torch.Generator().manual_seed(2)).argsort(-1)[..., :K]
    index = order.masked_fill(order >= S, -1).int().to(device)
    index[0, 1] = -1
    index[-1, 2, 5:] = -1
    index[:, 3, ::3] = -1
    return index


CASES = {
    "less than a tile": (2, 5, 40, 19),
    "more than a tile": (2, 5, 90, 71),
    "fewer keys than top-k": (1, 4, 30, 75),
    "one key": (2, 5, 40, 1),
}


@pytest.mark.parametrize("fixed", [False, True], indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_sparse(case, fixed, device, dtype, bound, draw, error):
    (B, T, S, K), I, J = CASES[case], 4, 16
    index = selection(B, T, S, K, device)
    target = attention_reference.head_mean(draw(B, T, 3, 32).double(), draw(B, S, 32).double(), index, SCALE)
    indexer = [draw(B, T, I, J).to(dtype), draw(B, S, J).to(dtype), draw(B, T, I).to(dtype)]
    expected = sparse(reference, target, indexer, index, torch.float64)
    actual = sparse(kernel, target, indexer, index, dtype)
    if K > 1:
        check(actual, expected, bound, error)
    else:  # both softmaxes are 1
        assert all(float(x.norm()) < bound for x in (*actual, *expected))
    if fixed:
        again = sparse(kernel, target, indexer, index, dtype)
        assert all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))


@pytest.mark.parametrize("fixed", [True], indirect=True)
def test_sparse_in_chunks(fixed, device, dtype, bound, draw, error, monkeypatch):
    """A workspace for three queries at a time."""
    B, T, S, I, J, K = 1, 7, 40, 2, 16, 21
    monkeypatch.setattr(kernel, "WORKSPACE", 3 * K * J * dtype.itemsize)
    index = selection(B, T, S, K, device)
    target = attention_reference.head_mean(draw(B, T, 3, 32).double(), draw(B, S, 32).double(), index, SCALE)
    indexer = [draw(B, T, I, J).to(dtype), draw(B, S, J).to(dtype), draw(B, T, I).to(dtype)]
    expected = sparse(reference, target, indexer, index, torch.float64)
    check(sparse(kernel, target, indexer, index, dtype), expected, bound, error)


def test_the_target_is_read_and_gets_no_gradient(device, dtype, draw):
    """It may be needed once more behind the loss."""
    index = selection(2, 4, 40, 19, device)
    main = draw(2, 4, 3, 32).double(), draw(2, 40, 32).double()
    target = attention_reference.head_mean(*main, index, SCALE).float().requires_grad_()
    before = target.detach().clone()
    indexer = [draw(2, 4, 4, 16).to(dtype), draw(2, 40, 16).to(dtype), draw(2, 4, 4).to(dtype)]
    sparse(kernel, target, indexer, index, dtype)
    assert target.grad is None and torch.equal(target, before)


def test_no_query_selects_a_key(device, dtype, draw):
    indexer = [draw(2, 4, 4, 16).to(dtype), draw(2, 40, 16).to(dtype), draw(2, 4, 4).to(dtype)]
    for K in (0, 19):
        index = torch.full((2, 4, K), -1, dtype=torch.int32, device=device)
        assert not any(x.any() for x in sparse(kernel, torch.zeros_like(index), indexer, index, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("fixed", [False, True], indirect=True)
@pytest.mark.parametrize(
    ("T", "S", "K"), [(5, 900, 200), (300, 700, 333), (40, 3000, 2048), (40, 3000, 2047)]
)
def test_sparse_at_head_sizes_of_glm5(T, S, K, fixed, draw, error):
    """64 heads of 576, fewer and more queries than multiprocessors; the target is the attention's own."""
    main = [draw(2, T, 64, 576).bfloat16(), draw(2, S, 576).bfloat16()]
    indexer = [draw(2, T, 32, 128).bfloat16(), draw(2, S, 128).bfloat16() / 8, draw(2, T, 32).bfloat16() / 8]
    index = selection(2, T, S, K, "cuda")
    wide = attention_reference.head_mean(*(x.double() for x in main), index, SCALE / 10)
    expected = sparse(reference, wide, indexer, index, torch.float64)
    _, lse, mean = attention.sparse_mla(*main, index, SCALE / 10, 512, mean=True)
    for target in (mean, attention.head_mean(*main, index, SCALE / 10, lse_BTN=lse)):
        check(sparse(kernel, target, indexer, index, torch.bfloat16), expected, 1e-2, error)
