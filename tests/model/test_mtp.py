"""The chain of MTP steps against one written out by hand, with and without packed documents."""

import pytest
import torch
import torch.nn.functional as F
from shapes import small_config

from model.attention.mla import AttentionOptions
from model.loss import IGNORE, next_targets, training_losses
from model.mtp import ahead


def chain_by_hand(model, document):
    """Losses of every step for one document (1, T): a separate call of the block on shrinking sequences."""
    hidden = model(document).hidden_BTD
    means = []
    for k in (1, 2, 3):
        T = document.shape[1] - k  # positions whose token t + k exists
        if T < 2:  # no position has a token to predict
            means.append(hidden.new_zeros(0))
            continue
        hidden = hidden[:, :T]
        embedded = F.embedding(document[:, k:], model.embed.weight).clone()
        embedded[:, 0] = 0
        joined = torch.cat([model.mtp.embed_norm(embedded), model.mtp.hidden_norm(hidden)], -1)
        view = model._view(document[:, :T], None)
        hidden, _ = model.mtp.block(joined @ model.mtp.join.weight.T, view, AttentionOptions())
        logits = model.mtp.norm(hidden) @ model.head.weight.T
        means.append(F.cross_entropy(logits[0, :-1], document[0, k + 1 :], reduction="none"))
    return means


@pytest.mark.parametrize("seed", range(3))
def test_one_document_per_row(make_model, seed):
    config = small_config(seed)
    model = make_model(config, seed, dtype=torch.float64)
    tokens = torch.randint(config.vocab_size, (2, 15))
    got = training_losses(model, tokens, next_targets(tokens), mtp=True).mtp
    rows = [chain_by_hand(model, tokens[b : b + 1]) for b in range(2)]
    expected = torch.stack([torch.cat([row[k] for row in rows]).mean() for k in range(3)]).mean()
    torch.testing.assert_close(got, expected)
    ours = torch.autograd.grad(
        got, [model.mtp.join.weight, model.embed.weight, model.blocks[0].attention.out.weight]
    )
    theirs = torch.autograd.grad(
        expected, [model.mtp.join.weight, model.embed.weight, model.blocks[0].attention.out.weight]
    )
    torch.testing.assert_close(ours, theirs)


def test_packed_documents_do_not_see_each_other(make_model):
    config = small_config(3)
    model = make_model(config, dtype=torch.float64)
    documents = [torch.randint(config.vocab_size, (1, n)) for n in (7, 12, 3)]
    packed = torch.cat(documents, 1)
    starts = torch.tensor([[0] * 7 + [7] * 12 + [19] * 3], dtype=torch.int32)
    got = training_losses(model, packed, next_targets(packed, starts), start_BT=starts, mtp=True)
    rows = [chain_by_hand(model, document) for document in documents]
    expected = torch.stack([torch.cat([row[k] for row in rows]).mean() for k in range(3)]).mean()
    torch.testing.assert_close(got.mtp, expected)


def test_steps_share_one_block_and_count_its_load(make_model):
    config = small_config(4)
    model = make_model(config)
    tokens = torch.randint(config.vocab_size, (3, 10))
    losses = training_losses(model, tokens, next_targets(tokens), mtp=True)
    # Three rows through three steps.
    assert losses.load_LE[-1].sum() == 3 * 10 * 3 * config.experts_per_token
    assert (losses.load_LE[:-1].sum(-1) == 3 * 10 * config.experts_per_token).all()
    assert sum("mtp." in name and ".block." in name and "q_up" in name for name in model.state_dict()) == 1


def test_ahead_stays_in_the_document():
    x = torch.tensor([[1, 2, 3, 4, 5, 6]])
    start = torch.tensor([[0, 0, 0, 3, 3, 3]])
    assert ahead(x, 1, start, fill=-1).tolist() == [[2, 3, -1, 5, 6, -1]]
    assert ahead(x, 2, start, fill=IGNORE).tolist() == [[3, IGNORE, IGNORE, 6, IGNORE, IGNORE]]
    assert ahead(x, 9, start, fill=0).tolist() == [[0] * 6]
