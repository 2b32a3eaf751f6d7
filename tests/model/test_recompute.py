"""Layers that are computed again in the backward pass give the same gradients as layers that are kept."""

import pytest
import torch
from shapes import small_config

from model.loss import next_targets, training_losses


@pytest.mark.parametrize("attention", ["dense", "sparse"])
def test_gradients_are_those_of_kept_layers(make_model, attention):
    model = make_model(small_config(5), indexer=True)
    tokens = torch.randint(model.config.vocab_size, (2, 24))

    def gradients(recompute: bool) -> dict[str, torch.Tensor]:
        model.zero_grad()
        model.recompute = recompute
        losses = training_losses(
            model, tokens, next_targets(tokens), attention=attention, indexer_loss=True, mtp=True
        )
        (losses.lm + losses.mtp + losses.balance + losses.indexer_kl).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    kept, again = gradients(False), gradients(True)
    assert kept.keys() == again.keys() and len(kept) > 20
    for name in kept:
        torch.testing.assert_close(again[name], kept[name], msg=name)


def test_recomputing_keeps_fewer_tensors(make_model):
    model = make_model(small_config(6))
    tokens = torch.randint(model.config.vocab_size, (2, 24))

    def kept_numbers(recompute: bool) -> int:
        model.recompute, total = recompute, 0

        def count(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(tokens)
        return total

    assert kept_numbers(True) < kept_numbers(False) / 2
