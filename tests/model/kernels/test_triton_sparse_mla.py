"""Sparse MLA against the float64 reference: values, log-sum-exp, gradients, splits and determinism."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.sparse_mla import backward, reference
from model.kernels.sparse_mla import triton as kernel


def inputs(draw, dtype, B, T, S, N, C, R, K, seed=1):
    """Query 1 selects nothing and query 2 has holes."""
    device = draw(1).device
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(B, T, max(S, K), generator=generator).argsort(-1)[..., :K].to(device).int()
    index = order.masked_fill(order >= S, -1)
    index[:, 1] = -1
    index[:, 2, ::3] = -1
    return draw(B, T, N, C + R).to(dtype), draw(B, S, C + R).to(dtype), index, draw(B, T, N, C)


def results(operation, q, kv, index, grad, latent, dtype, **options):
    q, kv = q.to(dtype).detach().clone().requires_grad_(), kv.to(dtype).detach().clone().requires_grad_()
    out, lse = operation(q, kv, index, 0.1, latent, **options)
    out.backward(grad.to(dtype))
    return out.detach(), lse.detach(), q.grad, kv.grad


CASES = {
    "odd sizes": (2, 4, 21, 3, 16, 16, 9),
    "latent that is no power of two": (1, 4, 40, 4, 48, 16, 20),
    "fewer keys than top-k": (1, 3, 10, 2, 16, 16, 30),
    "two blocks of heads": (1, 3, 30, 70, 16, 16, 70),
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, deterministic, dtype, bound, draw, error):
    B, T, S, N, C, R, K = CASES[case]
    q, kv, index, grad = inputs(draw, dtype, B, T, S, N, C, R, K)
    full = torch.arange(T, device=q.device) != 1  # the reference's gradient is NaN for a query without keys
    expected = results(reference.sparse_mla, q[:, full], kv, index[:, full], grad[:, full], C, torch.float64)
    out, lse, dq, dkv = results(kernel.sparse_mla, q, kv, index, grad, C, dtype, deterministic=deterministic)
    assert error(out[:, full], expected[0]) < bound
    assert error(lse[:, full], expected[1]) < 1e-5
    assert error(dq[:, full], expected[2]) < bound
    assert error(dkv, expected[3]) < bound
    assert not out[:, 1].any() and not dq[:, 1].any() and torch.isneginf(lse[:, 1]).all()


def test_gradients_of_keys_that_exceed_the_cache(dtype, bound, draw, error, monkeypatch):
    """Two blocks of keys."""
    q, kv, index, grad = inputs(draw, dtype, 1, 3, 140, 1, 16, 16, 130)
    by_query = results(kernel.sparse_mla, q, kv, index, grad, 16, dtype, deterministic=False)
    monkeypatch.setattr(backward, "IN_CACHE", 0)
    by_rank = results(kernel.sparse_mla, q, kv, index, grad, 16, dtype, deterministic=False)
    assert error(by_rank[3], by_query[3]) < bound


def test_queries_made_again(dtype, draw):
    """The same gradients whether the queries are kept or computed a second time."""
    q, kv, index, grad = inputs(draw, dtype, 1, 4, 40, 4, 16, 16, 20)
    kept = results(kernel.sparse_mla, q, kv, index, grad, 16, dtype, deterministic=True)
    again = (lambda half: half + half, (q / 2,))
    made = results(kernel.sparse_mla, q, kv, index, grad, 16, dtype, deterministic=True, again=again)
    assert all(torch.equal(a, b) for a, b in zip(kept, made, strict=True))


def test_splits_of_the_keys(dtype, bound, draw, error):
    q, kv, index, _ = inputs(draw, dtype, 1, 3, 400, 2, 16, 16, 300)
    whole = kernel.attend(q, kv, index, 0.1, 16, splits=1)
    parts = kernel.attend(q, kv, index, 0.1, 16, splits=3)
    seen = [0, 2]
    assert error(parts[0], whole[0]) < bound
    assert error(parts[1][:, seen], whole[1][:, seen]) < 1e-5
    assert torch.isneginf(parts[1][:, 1]).all()


def test_same_gradient_in_every_run(dtype, draw):
    q, kv, index, grad = inputs(draw, dtype, 2, 5, 12, 3, 16, 16, 9)
    first = results(kernel.sparse_mla, q, kv, index, grad, 16, dtype, deterministic=True)
    again = results(kernel.sparse_mla, q, kv, index, grad, 16, dtype, deterministic=True)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("heads", [8, 64, 128])
@pytest.mark.parametrize(
    "sizes", [(2, 33, 700, 200), (2, 33, 700, 208), (1, 9, 3000, 2048), (1, 4, 90, 48), (2, 140, 400, 333)]
)
def test_head_sizes_of_glm5(sizes, heads, deterministic, draw, error):
    """Keys that end inside a tile, no multiple of 16 and one; GLM-5's own number; less than a tile; two
    queries a multiprocessor and a few behind them.
    """
    B, T, S, K = sizes
    q, kv, index, grad = inputs(draw, torch.bfloat16, B, T, S, heads, 512, 64, K)
    full = torch.arange(T, device="cuda") != 1
    expected = results(
        reference.sparse_mla, q[:, full], kv, index[:, full], grad[:, full], 512, torch.float64
    )
    out, lse, dq, dkv = results(
        kernel.sparse_mla, q, kv, index, grad, 512, torch.bfloat16, deterministic=deterministic
    )
    assert error(lse[:, full], expected[1]) < 1e-5
    for value, wanted in ((out[:, full], expected[0]), (dq[:, full], expected[2]), (dkv, expected[3])):
        assert error(value, wanted) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
def test_keys_and_queries_of_several_chunks(deterministic, draw, error):
    """Gradients of keys that exceed the cache, and more queries than a chunk has room for weights of."""
    T, S, N, K, X = 2100, 20_480, 64, 2048, 576
    assert S * X * 4 > backward.IN_CACHE and T * 2 * K * N * 2 > backward.WORKSPACE_BY_RANK
    q, kv, grad = (draw(1, *shape).bfloat16() for shape in ((T, N, X), (S, X), (T, N, 512)))
    # One random set, turned by a number of its own for every query; most lists end early, one is empty.
    turn = (draw(T).abs() * S).long().unsqueeze(1)
    index = ((draw(S).argsort()[:K] + turn) % S).sort(-1).values.int()
    length = (draw(T).abs() * K).long().unsqueeze(1)
    index = index.masked_fill(torch.arange(K, device=index.device) >= length, -1).unsqueeze(0)
    index[:, 1] = -1
    out, lse, dq, dkv = results(
        kernel.sparse_mla, q, kv, index, grad, 512, torch.bfloat16, deterministic=deterministic
    )
    total = torch.zeros(1, S, X, dtype=torch.float64, device=kv.device)
    full = (index >= 0).any(-1)[0]
    for part in full.nonzero()[:, 0].split(60):
        arguments = (q[:, part], kv, index[:, part], grad[:, part], 512, torch.float64)
        expected = results(reference.sparse_mla, *arguments)
        assert error(out[:, part], expected[0]) < 1e-2 and error(lse[:, part], expected[1]) < 1e-5
        assert error(dq[:, part], expected[2]) < 1e-2
        total += expected[3]
    assert error(dkv, total) < 1e-2
    assert not dq[:, ~full].any()
