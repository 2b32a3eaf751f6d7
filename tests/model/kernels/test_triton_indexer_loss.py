"""Indexer losses and their gradients against the float64 reference."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.indexer_loss import reference
from model.kernels.indexer_loss import triton as kernel
from model.kernels.sparse_mla.triton import attend

SCALE = 0.3


def run(operation, leading, indexer, trailing, dtype, scale=SCALE, **options):
    leaves = [x.to(dtype).detach().clone().requires_grad_() for x in indexer]
    loss = operation(*(x.to(dtype) for x in leading), scale, *leaves, *trailing, **options)
    (loss * 3.0).backward()
    return [loss.detach(), *(x.grad for x in leaves)]


def check(actual, expected, bound, error):
    assert float(actual[0] - expected[0]) == pytest.approx(0.0, abs=bound * float(expected[0]))
    for value, wanted in zip(actual[1:], expected[1:], strict=True):
        assert error(value, wanted) < 3 * bound


def test_dense(device, dtype, bound, draw, error):
    B, T, S, N, H, I, J = 2, 11, 70, 3, 16, 4, 16
    leading = [draw(B, T, N, H).to(dtype), draw(B, S, N, H).to(dtype)]
    indexer = [draw(B, T, I, J).to(dtype), draw(B, S, J).to(dtype), draw(B, T, I).to(dtype)]
    stop = (torch.arange(T, device=device) * 6 + 3).clamp(max=S).int().repeat(B, 1)
    start = torch.where(torch.arange(T, device=device) > 5, 20, 0).int().repeat(B, 1)
    stop[0, 3] = start[0, 3]  # sees nothing
    stop[1, 7] = start[1, 7] + 1  # a one-token document
    expected = run(reference.dense_indexer_loss, leading, indexer, (start, stop), torch.float64)
    actual = run(kernel.dense_indexer_loss, leading, indexer, (start, stop), dtype)
    check(actual, expected, bound, error)


def test_dense_in_chunks(device, dtype, bound, draw, error, monkeypatch):
    monkeypatch.setattr(kernel, "WORKSPACE", 128 * 4 * 140)
    T = 140
    leading = [draw(1, T, 1, 16).to(dtype), draw(1, T, 1, 16).to(dtype)]
    indexer = [draw(1, T, 2, 16).to(dtype), draw(1, T, 16).to(dtype), draw(1, T, 2).to(dtype)]
    stop = (torch.arange(T, device=device) + 1).int().unsqueeze(0)
    expected = run(reference.dense_indexer_loss, leading, indexer, (stop * 0, stop), torch.float64)
    check(run(kernel.dense_indexer_loss, leading, indexer, (stop * 0, stop), dtype), expected, bound, error)


@pytest.fixture
def fixed(request):
    """Whether the sums have a fixed order."""
    torch.use_deterministic_algorithms(request.param, warn_only=True)
    yield request.param
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("given_lse", "fixed"), [(False, False), (True, True)], indirect=["fixed"])
def test_sparse(given_lse, fixed, device, dtype, bound, draw, error):
    B, T, S, N, I, J, K = 2, 5, 40, 3, 4, 16, 19
    X = 48 if given_lse else 32  # with and without a remainder behind the largest power of two
    leading = [draw(B, T, N, X).to(dtype), draw(B, S, X).to(dtype)]
    indexer = [draw(B, T, I, J).to(dtype), draw(B, S, J).to(dtype), draw(B, T, I).to(dtype)]
    index = (
        torch.rand(B, T, S, generator=torch.Generator().manual_seed(2)).argsort(-1)[..., :K].int().to(device)
    )
    index[0, 1] = -1
    index[1, 2, 5:] = -1
    options = {}
    if given_lse:
        score = torch.einsum("btnx,btkx->btnk", leading[0].double(), _rows(leading[1], index)) * SCALE
        options["lse_BTN"] = score.masked_fill(index.unsqueeze(2) < 0, float("-inf")).logsumexp(-1).float()
    expected = run(reference.sparse_indexer_loss, leading, indexer, (index,), torch.float64)
    actual = run(kernel.sparse_indexer_loss, leading, indexer, (index,), dtype, **options)
    check(actual, expected, bound, error)
    if fixed:
        again = run(kernel.sparse_indexer_loss, leading, indexer, (index,), dtype, **options)
        assert all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("fixed", [False, True], indirect=True)
@pytest.mark.parametrize(("T", "S", "K"), [(5, 900, 200), (300, 700, 333)])
def test_sparse_at_head_sizes_of_glm5(T, S, K, fixed, draw, error):
    """64 heads of 576 with the attention's lse, fewer and more queries than multiprocessors."""
    leading = [draw(2, T, 64, 576).bfloat16(), draw(2, S, 576).bfloat16()]
    indexer = [draw(2, T, 32, 128).bfloat16(), draw(2, S, 128).bfloat16() / 8, draw(2, T, 32).bfloat16() / 8]
    index = torch.rand(2, T, S, generator=torch.Generator().manual_seed(5)).argsort(-1)[..., :K].int().cuda()
    index[0, 1] = -1
    index[1, 2, 5:] = -1
    lse = attend(*leading, index, SCALE / 10, 512)[1]
    expected = run(reference.sparse_indexer_loss, leading, indexer, (index,), torch.float64, SCALE / 10)
    actual = run(
        kernel.sparse_indexer_loss, leading, indexer, (index,), torch.bfloat16, SCALE / 10, lse_BTN=lse
    )
    check(actual, expected, 1e-2, error)


def _rows(kv, index):
    return torch.stack([kv[b][index[b].clamp(min=0).long()] for b in range(kv.shape[0])]).double()
