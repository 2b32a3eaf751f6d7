"""The indexer's losses: values by hand, float64 gradients, tiles, and who learns from them."""

import pytest
import torch
from shapes import small_config

from model.kernels.indexer_loss import reference
from model.kernels.indexer_loss.reference import dense_indexer_loss, sparse_indexer_loss
from model.kernels.indexer_topk.reference import indexer_scores, indexer_topk
from model.kernels.sparse_mla.reference import head_mean, sparse_mla
from model.loss import indexer_loss, next_targets, training_losses


def tensors(seed, B=2, T=11, N=3, H=4, C=6, R=2, heads=3, J=4):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    main = draw(B, T, N, H), draw(B, T, N, H)
    absorbed = draw(B, T, N, C + R), draw(B, T, C + R)
    index = [x.requires_grad_() for x in (draw(B, T, heads, J), draw(B, T, J), draw(B, T, heads))]
    start = torch.zeros(B, T, dtype=torch.int32)
    start[0, 4:] = 4  # a second document
    stop = torch.arange(1, T + 1, dtype=torch.int32).repeat(B, 1)
    return main, absorbed, index, start, stop


def kl_by_hand(main_scores_NS, index_scores_S):
    target = main_scores_NS.softmax(-1).sum(0)
    target = target / target.sum()
    return (target * (target.log() - index_scores_S.log_softmax(-1))).sum()


def test_dense_loss_by_hand():
    (q, k), _, (iq, ik, iw), start, stop = tensors(0)
    start[1, 5] = stop[1, 5]  # one query that sees nothing
    values = []
    for b in range(2):
        for t in range(11):
            keys = slice(start[b, t], stop[b, t])
            if keys.start < keys.stop:
                scores = indexer_scores(iq, ik, iw)[b, t, keys]
                values.append(kl_by_hand(torch.einsum("nh,snh->ns", q[b, t], k[b, keys]) * 0.3, scores))
    assert len(values) == 21
    torch.testing.assert_close(
        dense_indexer_loss(q, k, 0.3, iq, ik, iw, start, stop), torch.stack(values).mean()
    )


@pytest.mark.parametrize("top_k", [1, 4, 14])
def test_sparse_loss_by_hand(top_k):
    _, (q, kv), (iq, ik, iw), start, stop = tensors(1)
    index = indexer_topk(iq, ik, iw, start, stop, top_k)
    index[1, 5] = -1  # one query that selects nothing
    index[0, 9, 0] = -1  # and one whose first entry does
    values = []
    for b in range(2):
        for t in range(11):
            keys = index[b, t][index[b, t] >= 0].long()
            if len(keys):
                scores = indexer_scores(iq, ik, iw)[b, t, keys]
                values.append(kl_by_hand(q[b, t] @ kv[b, keys].T * 0.3, scores))
    assert len(values) == (20 if top_k == 1 else 21)
    for target in (sparse_mla(q, kv, index, 0.3, 6, mean=True)[2], head_mean(q, kv, index, 0.3)):
        loss = sparse_indexer_loss(target, iq, ik, iw, index)
        torch.testing.assert_close(loss, torch.stack(values).mean())


def test_sparse_loss_is_zero_where_no_query_selects_a_key():
    _, (q, kv), inputs, _, _ = tensors(5)
    index = torch.full((2, 11, 3), -1, dtype=torch.int32)
    loss = sparse_indexer_loss(head_mean(q, kv, index, 0.3), *inputs, index)
    assert loss == 0 and not any(g.any() for g in torch.autograd.grad(loss, inputs))


def test_the_target_gets_no_gradient():
    _, (q, kv), inputs, start, stop = tensors(6)
    index = indexer_topk(*inputs, start, stop, 4)
    target = head_mean(q, kv, index, 0.3).requires_grad_()
    sparse_indexer_loss(target, *inputs, index).backward()
    assert target.grad is None and all(x.grad.any() for x in inputs)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_float64_gradients(kind):
    (q, k), (qx, kv), inputs, start, stop = tensors(2, T=6, heads=2, J=3)
    index = indexer_topk(*inputs, start, stop, 3)
    if kind == "dense":
        assert torch.autograd.gradcheck(lambda *i: dense_indexer_loss(q, k, 0.3, *i, start, stop), inputs)
    else:
        target = head_mean(qx, kv, index, 0.3)
        assert torch.autograd.gradcheck(lambda *i: sparse_indexer_loss(target, *i, index), inputs)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_tiles_do_not_change_the_loss(monkeypatch, kind):
    (q, k), (qx, kv), inputs, start, stop = tensors(3)
    index = indexer_topk(*inputs, start, stop, 4)
    target = head_mean(qx, kv, index, 0.3)

    def loss():
        if kind == "dense":
            return dense_indexer_loss(q, k, 0.3, *inputs, start, stop)
        return sparse_indexer_loss(target, *inputs, index)

    whole = loss()
    grads = torch.autograd.grad(whole, inputs)
    monkeypatch.setattr(reference, "QUERY_TILE", 3)
    tiled = loss()
    torch.testing.assert_close(tiled, whole)
    torch.testing.assert_close(torch.autograd.grad(tiled, inputs), grads)


def test_nothing_of_all_heads_outlives_a_tile(monkeypatch):
    """The largest tensor that is ever made has a tile of queries, not all of them."""
    (q, k), _, inputs, start, stop = tensors(4)
    sizes = []
    softmax = torch.Tensor.softmax
    monkeypatch.setattr(reference, "QUERY_TILE", 2)
    monkeypatch.setattr(torch.Tensor, "softmax", lambda x, *a: sizes.append(tuple(x.shape)) or softmax(x, *a))
    dense_indexer_loss(q, k, 0.3, *inputs, start, stop).backward()
    assert len(sizes) == 6 and all(shape[2] <= 2 for shape in sizes)


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_the_indexer_learns_only_from_its_loss_and_the_trunk_never(make_model, mode):
    config = small_config(1)
    model = make_model(config, indexer=True)
    tokens = torch.randint(config.vocab_size, (2, 24))
    out = model(tokens, attention=mode, indexer_loss=True)
    out.indexer_kl_L.sum().backward(retain_graph=True)
    trunk = [n for n, p in model.named_parameters() if p.grad is not None and ".indexer." not in n]
    assert trunk == []
    learners = [p for n, p in model.named_parameters() if ".indexer." in n and not n.startswith("mtp")]
    assert learners and all(p.grad.abs().max() > 0 for p in learners)
    model.zero_grad()
    out.hidden_BTD.sum().backward()
    assert all(p.grad is None for p in learners)


def test_descending_the_loss_finds_the_attention(make_model):
    config = small_config(2, num_layers=1, first_dense_layers=1, mtp_steps=0)
    model = make_model(config, indexer=True)
    tokens = torch.randint(config.vocab_size, (4, 32))
    indexer = list(model.blocks[0].attention.indexer.parameters())
    optimizer = torch.optim.Adam(indexer, lr=0.02)
    before = model(tokens, measure=True, indexer_loss=True)
    for _ in range(60):
        optimizer.zero_grad()
        model(tokens, indexer_loss=True).indexer_kl_L.sum().backward()
        optimizer.step()
    after = model(tokens, measure=True, indexer_loss=True)
    assert after.indexer_kl_L.item() < before.indexer_kl_L.item() / 3
    assert after.mass_L3[0, 0] > before.mass_L3[0, 0]
    torch.testing.assert_close(after.mass_L3[0, 1], before.mass_L3[0, 1])


def test_the_loss_of_warm_up_is_that_of_a_whole_training_step(make_model):
    model = make_model(small_config(4), indexer=True)
    tokens = torch.randint(0, model.config.vocab_size, (3, 24))
    whole = training_losses(model, tokens, next_targets(tokens), indexer_loss=True, mtp=True)
    torch.testing.assert_close(indexer_loss(model, tokens, mtp=True), whole.indexer_kl)
