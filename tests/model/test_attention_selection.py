"""References: the indexer's top-k (order, ties, padding, visibility) and attention over what it selects."""

import pytest
import torch

from model.kernels.indexer_topk import reference
from model.kernels.indexer_topk.reference import indexer_scores, indexer_topk
from model.kernels.sparse_mla import reference as sparse_mla_reference
from model.kernels.sparse_mla.reference import head_mean, sparse_mla


def expected_order(scores: list[float], start: int, stop: int, top_k: int) -> list[int]:
    best = sorted(range(start, stop), key=lambda s: (-scores[s], s))[:top_k]
    return best + [-1] * (top_k - len(best))


@pytest.mark.parametrize("tile", [3, 512])
@pytest.mark.parametrize("top_k", [1, 4, 30])
def test_order_ties_and_padding(monkeypatch, tile, top_k):
    """Small integers give exact scores with many ties, zeros and negative zeros among them."""
    monkeypatch.setattr(reference, "QUERY_TILE", tile)
    generator = torch.Generator().manual_seed(top_k)

    def draw(*shape):
        return torch.randint(-2, 3, shape, generator=generator).float()

    q, k, w = draw(2, 13, 3, 2), draw(2, 17, 2), draw(2, 13, 3)
    start = torch.randint(0, 9, (2, 13), generator=generator).int()
    stop = (start + torch.randint(0, 9, (2, 13), generator=generator)).int()
    index = indexer_topk(q, k, w, start, stop, top_k)
    assert index.dtype == torch.int32 and index.shape == (2, 13, top_k)
    scores = indexer_scores(q, k, w)
    for b in range(2):
        for t in range(13):
            want = expected_order(scores[b, t].tolist(), int(start[b, t]), int(stop[b, t]), top_k)
            assert index[b, t].tolist() == want
    by_index, unordered = (indexer_topk(q, k, w, start, stop, top_k, order=o) for o in ("index", "any"))
    absent = index.masked_fill(index < 0, 99).sort(-1).values
    assert torch.equal(by_index, absent.masked_fill(absent == 99, -1))
    assert torch.equal(unordered.sort(-1).values, index.sort(-1).values)


def test_scores_by_hand():
    q = torch.tensor([[[[1.0, 0.0], [0.0, 2.0]]]])
    k = torch.tensor([[[3.0, 1.0], [-1.0, 4.0]]])
    weight = torch.tensor([[[0.5, -1.0]]])
    assert indexer_scores(q, k, weight).tolist() == [[[0.5 * 3 - 2.0, -8.0]]]


def test_sparse_attention_by_hand_and_its_gradients():
    torch.manual_seed(0)
    q = torch.randn(2, 4, 2, 5, dtype=torch.float64, requires_grad=True)
    kv = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[[0, 3, -1], [5, 1, 2], [-1, -1, -1], [4, -1, -1]]] * 2, dtype=torch.int32)
    out, lse, mean = sparse_mla(q, kv, index, 0.4, latent=3)
    assert mean is None
    for b in range(2):
        for t in range(4):
            keys = kv[b, index[b, t][index[b, t] >= 0].long()]
            scores = q[b, t] @ keys.T * 0.4
            torch.testing.assert_close(out[b, t], scores.softmax(-1) @ keys[:, :3])
            torch.testing.assert_close(lse[b, t], scores.logsumexp(-1))
    assert (out[:, 2] == 0).all() and (lse[:, 2] == -torch.inf).all()
    assert torch.autograd.gradcheck(lambda q, kv: sparse_mla(q, kv, index, 0.4, 3)[0], (q, kv))


def selection(B, T, S, K):
    """Queries, keys and K random keys for each query; query 2 selects nothing and query 3 has holes."""
    generator = torch.Generator().manual_seed(K)
    index = torch.rand(B, T, max(S, K), generator=generator).argsort(-1)[..., :K].int()
    index = index.masked_fill(index >= S, -1)
    index[:, 2] = -1
    index[:, 3, ::2] = -1
    q = torch.randn(B, T, 3, 5, generator=generator, dtype=torch.float64)
    return q, torch.randn(B, S, 5, generator=generator, dtype=torch.float64), index


@pytest.mark.parametrize("tile", [1, 4, 128])
@pytest.mark.parametrize("K", [1, 7, 23, 30])
def test_mean_over_heads(monkeypatch, tile, K):
    """Odd numbers of queries and keys; fewer selected than there are keys, all of them, and more."""
    monkeypatch.setattr(sparse_mla_reference, "QUERY_TILE", tile)
    q, kv, index = selection(2, 13, 23, K)
    every = torch.einsum("btnx,bsx->btns", q, kv) * 0.7
    taken = torch.zeros(2, 13, 24, dtype=torch.bool)
    taken = taken.scatter(-1, index.masked_fill(index < 0, 23).long(), True)[..., :23]  # 23 stands for absent
    weight = every.masked_fill(~taken.unsqueeze(2), float("-inf")).softmax(-1).mean(2)
    expected = weight.gather(-1, index.clamp(min=0).long()).masked_fill(index < 0, 0.0)
    _, lse, mean = sparse_mla(q, kv, index, 0.7, 3, mean=True)
    for value in (mean, head_mean(q, kv, index, 0.7), head_mean(q, kv, index, 0.7, lse_BTN=lse)):
        assert value.dtype == torch.float64
        torch.testing.assert_close(value, expected)
        assert (value[index < 0] == 0).all()
        torch.testing.assert_close(value.sum(-1), (index >= 0).any(-1).double())


def test_mean_over_heads_carries_no_gradient_and_changes_none():
    q, kv, index = selection(1, 5, 9, 4)
    leaves = q.requires_grad_(), kv.requires_grad_()
    (alone, *_), (out, lse, mean) = (sparse_mla(q, kv, index, 0.7, 3, mean=asked) for asked in (False, True))
    assert out.requires_grad and not lse.requires_grad and not mean.requires_grad
    assert not head_mean(q, kv, index, 0.7).requires_grad
    for a, b in zip(*(torch.autograd.grad(x.sum(), leaves) for x in (alone, out)), strict=True):
        torch.testing.assert_close(a, b)


def test_mean_over_heads_is_float32_of_bfloat16():
    q, kv, index = selection(2, 6, 9, 5)
    wide = sparse_mla(q.bfloat16().double(), kv.bfloat16().double(), index, 0.7, 3, mean=True)[2]
    q, kv = q.bfloat16(), kv.bfloat16()
    for value in (sparse_mla(q, kv, index, 0.7, 3, mean=True)[2], head_mean(q, kv, index, 0.7)):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, wide.float(), atol=1e-2, rtol=1e-2)


def test_selected_rows_outlive_no_tile(monkeypatch):
    """``head_mean`` gathers the rows of a tile of queries, never of all."""
    q, kv, index = selection(2, 7, 9, 4)
    sizes, gather = [], sparse_mla_reference.gather_rows
    monkeypatch.setattr(sparse_mla_reference, "QUERY_TILE", 3)
    monkeypatch.setattr(
        sparse_mla_reference, "gather_rows", lambda kv, i: sizes.append(tuple(i.shape)) or gather(kv, i)
    )
    head_mean(q, kv, index, 0.7)
    assert sizes == [(2, 3, 4), (2, 3, 4), (2, 1, 4)]
