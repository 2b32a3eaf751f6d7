"""Sparse MLA against the float64 reference: values, log-sum-exp, mean over heads, gradients, splits and
determinism.
"""

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
    out, lse, _ = operation(q, kv, index, 0.1, latent, **options)
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
    """With the mean asked for and without it."""
    B, T, S, N, C, R, K = CASES[case]
    q, kv, index, grad = inputs(draw, dtype, B, T, S, N, C, R, K)
    full = torch.arange(T, device=q.device) != 1  # whose lse is -inf stands below
    expected = results(reference.sparse_mla, q[:, full], kv, index[:, full], grad[:, full], C, torch.float64)
    out, lse, dq, dkv = results(
        kernel.sparse_mla, q, kv, index, grad, C, dtype, deterministic=deterministic, mean=deterministic
    )
    assert error(out[:, full], expected[0]) < bound
    assert error(lse[:, full], expected[1]) < 1e-5
    assert error(dq[:, full], expected[2]) < bound
    assert error(dkv, expected[3]) < bound
    assert not out[:, 1].any() and not dq[:, 1].any() and torch.isneginf(lse[:, 1]).all()


def check_mean(q, kv, index, latent, bound, error):
    """All ways to the mean over heads, and what stands beside it in ``sparse_mla``."""
    wide = q.double(), kv.double()
    expected = reference.head_mean(*wide, index, 0.1)
    plain = kernel.sparse_mla(q, kv, index, 0.1, latent)
    out, lse, mean = kernel.sparse_mla(q, kv, index, 0.1, latent, mean=True)
    assert plain[2] is None
    full = (index >= 0).any(-1)
    assert error(out, plain[0]) < bound and error(lse[full], plain[1][full]) < 1e-5
    assert torch.isneginf(lse[~full]).all() and not out[~full].any()
    alone = kernel.head_mean(q, kv, index, 0.1), kernel.head_mean(q, kv, index, 0.1, lse_BTN=lse)
    for value in (mean, *alone):
        assert value.dtype == torch.float32 and value.shape == index.shape
        assert error(value, expected) < bound
        assert not value[index < 0].any()
        # No query is worse than the bound, which the norm over all of them could hide.
        off = (value.double() - expected).norm(dim=-1)
        assert (off <= 2 * bound * expected.norm(dim=-1)).all()
    return expected


def with_empty_tiles(index):
    """The first query's list ends early, and the last one's begins late."""
    index = index.clone()
    index[:, 0, 5:] = -1
    index[:, -1, : index.shape[-1] // 2] = -1
    return index


MEAN_CASES = CASES | {
    "one key": (2, 3, 11, 3, 16, 16, 1),
    "several splits": (1, 3, 310, 2, 16, 16, 300),
    "a rest behind a power of two": (1, 4, 21, 3, 32, 16, 9),
    "several splits and blocks of heads": (1, 3, 210, 70, 16, 16, 203),
}


@pytest.mark.parametrize("case", MEAN_CASES)
def test_mean_over_heads(case, dtype, bound, draw, error):
    B, T, S, N, C, R, K = MEAN_CASES[case]
    q, kv, index, _ = inputs(draw, dtype, B, T, S, N, C, R, K)
    index = with_empty_tiles(index)
    expected = check_mean(q, kv, index, C, bound, error)
    direct = reference.sparse_mla(q.double(), kv.double(), index, 0.1, C, mean=True)[2]
    torch.testing.assert_close(direct, expected)


@pytest.mark.parametrize(("rows", "heads", "keys"), [(3, 64, 200), (2, 128, 328), (1, 64, 64), (2, 64, 1)])
def test_mean_of_weights_that_are_written_out(rows, heads, keys, draw):
    """Weights of each tile over the largest score so far, as the kernel for Hopper writes them."""
    score = 3 * draw(rows, heads, keys).double()
    score[:, :, ::5] = float("-inf")
    score[0] = float("-inf")
    score[-1, :, :64] = float("-inf")
    score[-1] -= 150.0  # exp2(150) is no float32: the empty tile's factor must not be taken from a zero
    tiles = -(-keys // 64)
    padded = torch.nn.functional.pad(score, (0, tiles * 64 - keys), value=float("-inf"))
    padded = padded.view(rows, heads, tiles, 64)
    top = padded.amax(-1).cummax(-1).values
    weights = torch.exp2(padded - top.nan_to_num(neginf=0.0).unsqueeze(-1))
    weights = weights.flatten(2)[..., :keys].float().contiguous()
    natural = score * torch.log(torch.tensor(2.0, dtype=torch.float64))
    actual = torch.full((rows, keys), float("nan"), device=score.device)
    kernel.mean_of_weights(weights, top.mT.float().contiguous(), natural.logsumexp(-1).float(), actual)
    expected = natural.softmax(-1).nan_to_num(0.0).mean(1)
    torch.testing.assert_close(actual.double(), expected, rtol=5e-5, atol=1e-8)


def test_mean_over_heads_of_uneven_softmaxes(dtype, bound, draw, error):
    """Heads whose weight lies on one key each, and on hundreds of them."""
    q, kv, index, _ = inputs(draw, dtype, 2, 4, 60, 5, 16, 16, 41)
    q = q * (10.0 ** torch.arange(-3, 2, device=q.device)).view(-1, 1).to(dtype)
    check_mean(q, kv, index, 16, bound, error)


def test_mean_over_heads_carries_no_gradient(dtype, draw):
    q, kv, index, _ = inputs(draw, dtype, 1, 4, 20, 3, 16, 16, 9)
    q, kv = q.requires_grad_(), kv.requires_grad_()
    out, lse, mean = kernel.sparse_mla(q, kv, index, 0.1, 16, mean=True)
    assert out.requires_grad and not lse.requires_grad and not mean.requires_grad
    assert not kernel.head_mean(q, kv, index, 0.1).requires_grad
    assert not kernel.head_mean(q, kv, index, 0.1, lse_BTN=lse).requires_grad


def test_mean_over_heads_of_no_queries_and_of_no_keys(dtype, draw):
    for T, K in ((0, 9), (3, 0)):
        q, kv = draw(2, T, 3, 32).to(dtype), draw(2, 20, 32).to(dtype)
        index = torch.zeros(2, T, K, dtype=torch.int32, device=q.device)
        assert kernel.sparse_mla(q, kv, index, 0.1, 16, mean=True)[2].shape == (2, T, K)
        assert kernel.head_mean(q, kv, index, 0.1).shape == (2, T, K)


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
    for mean in (False, True):
        made = results(
            kernel.sparse_mla, q, kv, index, grad, 16, dtype, deterministic=True, again=again, mean=mean
        )
        assert all(torch.equal(a, b) for a, b in zip(kept, made, strict=True))


def test_splits_of_the_keys(dtype, bound, draw, error):
    q, kv, index, _ = inputs(draw, dtype, 1, 3, 400, 2, 16, 16, 300)
    whole = kernel.attend(q, kv, index, 0.1, 16, splits=1, mean=True)
    parts = kernel.attend(q, kv, index, 0.1, 16, splits=3, mean=True)
    seen = [0, 2]
    assert error(parts[0], whole[0]) < bound
    assert error(parts[1][:, seen], whole[1][:, seen]) < 1e-5
    assert error(parts[2], reference.head_mean(q.double(), kv.double(), index, 0.1)) < bound
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


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [8, 64, 128])
@pytest.mark.parametrize(
    "sizes",
    [
        (2, 3, 3000, 2048), (2, 5, 3000, 2047), (1, 9, 1500, 2048), (2, 33, 700, 333), (1, 4, 90, 48),
        (1, 4, 90, 130), (2, 140, 400, 333), (2, 140, 2500, 2048), (2, 140, 400, 64), (2, 140, 400, 128),
        (1, 9, 600, 8), (1, 9, 600, 1),
    ],
)  # fmt: skip
def test_mean_over_heads_at_head_sizes_of_glm5(sizes, heads, draw, error):
    """A few queries, whose keys are split, and many with a few behind a full card; GLM-5's number of keys,
    one less, more than there are, less than a tile, one tile and two.
    """
    B, T, S, K = sizes
    q, kv, index, _ = inputs(draw, torch.bfloat16, B, T, S, heads, 512, 64, K)
    index = with_empty_tiles(index)
    assert not (index[:, 1] >= 0).any()
    q = q / 8  # spread over many keys
    check_mean(q, kv, index, 512, 1e-2, error)
    q = q * 16  # and on a few
    check_mean(q, kv, index, 512, 1e-2, error)


@pytest.mark.gpu
def test_gradients_at_head_sizes_of_glm5_with_the_mean(draw, error):
    """The mean changes neither the attention nor its gradients."""
    q, kv, index, grad = inputs(draw, torch.bfloat16, 2, 140, 2500, 64, 512, 64, 2048)
    arguments = kernel.sparse_mla, q, kv, index, grad, 512, torch.bfloat16
    plain, asked = (results(*arguments, deterministic=True, mean=mean) for mean in (False, True))
    for a, b in zip(asked, plain, strict=True):
        seen = ~torch.isneginf(b)  # lse of a query without keys
        assert error(a[seen], b[seen]) < 1e-2


@pytest.mark.gpu
def test_same_bits_in_every_run_and_chunk_at_head_sizes_of_glm5(draw, monkeypatch):
    """Weights that are written out a wave of programs at a time give the same mean; races would differ."""
    q, kv, index, _ = inputs(draw, torch.bfloat16, 2, 140, 2500, 64, 512, 64, 2048)
    first = kernel.attend(q, kv, index, 0.1, 512, mean=True)
    for run in range(40):
        if run == 20:
            monkeypatch.setattr(kernel, "WORKSPACE", 0)
        again = kernel.attend(q, kv, index, 0.1, 512, mean=True)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.gpu
def test_mean_behind_an_empty_tile_of_scores_far_below_zero(draw):
    q, kv = 2 + draw(1, 140, 64, 576).bfloat16() / 8, -2 + draw(1, 900, 576).bfloat16() / 8
    index = draw(1, 140, 900).argsort(-1)[..., :256].int()
    index[..., :64] = -1
    _, lse, mean = kernel.attend(q, kv, index, 0.1, 512, mean=True)
    assert lse.max() < -150  # exp of it is no float32
    assert not mean[..., :64].any()
    torch.testing.assert_close(mean.sum(-1), torch.ones(1, 140, device=mean.device), rtol=0, atol=1e-2)
