"""Next-token loss in chunks, targets, and what is ignored."""

import pytest
import torch
import torch.nn.functional as F
from shapes import small_config

from model.kernels.cross_entropy import reference
from model.kernels.cross_entropy.reference import linear_cross_entropy
from model.loss import IGNORE, next_targets, training_losses


@pytest.mark.parametrize("chunk_logits", [1, 7 * 11, 1 << 26])
def test_chunks_do_not_change_loss_or_gradients(monkeypatch, chunk_logits):
    monkeypatch.setattr(reference, "CHUNK_LOGITS", chunk_logits)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(17, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randint(11, (17,), generator=generator)
    target[[2, 9]] = IGNORE
    loss = linear_cross_entropy(x, weight, target)
    logp = (x @ weight.T).log_softmax(-1)
    expected = torch.stack(
        [torch.zeros_like(logp[0, 0]) if t == IGNORE else -logp[m, t] for m, t in enumerate(target)]
    )
    torch.testing.assert_close(loss, expected)
    probe = torch.randn(17, generator=generator, dtype=torch.float64)
    grads = torch.autograd.grad((loss * probe).sum(), (x, weight))
    torch.testing.assert_close(grads, torch.autograd.grad((expected * probe).sum(), (x, weight)))
    assert (grads[0][[2, 9]] == 0).all()


def test_next_targets():
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert next_targets(tokens).tolist() == [[6, 7, 8, IGNORE]]
    starts = torch.tensor([[0, 0, 2, 2]])
    assert next_targets(tokens, starts).tolist() == [[6, IGNORE, 8, IGNORE]]


def test_losses_are_means_over_targets(make_model):
    config = small_config(0)
    model = make_model(config)
    tokens = torch.randint(config.vocab_size, (2, 12))
    target = next_targets(tokens)
    target[0, :6] = IGNORE
    losses = training_losses(model, tokens, target)
    logits = model.logits(model(tokens).hidden_BTD)
    expected = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORE)
    torch.testing.assert_close(losses.lm, expected)
    assert (losses.token_BT[0, :6] == 0).all()
    torch.testing.assert_close(losses.token_BT.sum() / 16, expected)
    assert losses.mtp == 0 and losses.indexer_kl == 0 and losses.indexer_kl_L is None


def test_no_target_at_all_is_a_zero_loss(make_model):
    config = small_config(1)
    model = make_model(config)
    tokens = torch.randint(config.vocab_size, (1, 8))
    losses = training_losses(model, tokens, torch.full_like(tokens, IGNORE), mtp=True)
    assert losses.lm == 0 and losses.mtp == 0
