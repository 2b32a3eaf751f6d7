"""The reference of the indexer's top-k: order, ties, padding, visibility."""

import pytest
import torch

from model.kernels.indexer_topk import reference
from model.kernels.indexer_topk.reference import indexer_scores, indexer_topk
from model.kernels.sparse_mla.reference import sparse_mla


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
    out, lse = sparse_mla(q, kv, index, 0.4, latent=3)
    for b in range(2):
        for t in range(4):
            keys = kv[b, index[b, t][index[b, t] >= 0].long()]
            scores = q[b, t] @ keys.T * 0.4
            torch.testing.assert_close(out[b, t], scores.softmax(-1) @ keys[:, :3])
            torch.testing.assert_close(lse[b, t], scores.logsumexp(-1))
    assert (out[:, 2] == 0).all() and (lse[:, 2] == -torch.inf).all()
    assert torch.autograd.gradcheck(lambda q, kv: sparse_mla(q, kv, index, 0.4, 3)[0], (q, kv))
