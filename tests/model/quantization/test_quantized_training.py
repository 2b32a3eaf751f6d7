"""Quantisation-aware training computes with the bits that min-max quantisation stores later."""

import copy

import pytest
import torch
from shapes import small_config

from model.loss import next_targets, training_losses
from model.moe import MoE
from model.quantization.layers import install
from model.quantization.quantize import quantize_model
from model.quantization.rounding import QuantizedTensor, minmax_scale, quantize_weight
from model.quantization.scheme import Scheme


def round_experts(model, bits: int) -> None:
    """Put the trunk's experts through storage."""
    with torch.no_grad():
        for block in model.blocks:
            if isinstance(block.ffn, MoE):
                for weight in (block.ffn.gate_up, block.ffn.down):
                    scale = minmax_scale(weight, bits)
                    stored = QuantizedTensor(quantize_weight(weight, scale, bits), scale, bits)
                    weight.copy_(stored.dequantize(weight.dtype))


def loss_of(model, tokens) -> torch.Tensor:
    return training_losses(model, tokens, next_targets(tokens), mtp=True).lm


def test_what_is_trained_is_what_is_stored_and_gradients_pass_through(make_model):
    model = make_model(small_config(0))
    rounded = copy.deepcopy(model)
    round_experts(rounded, 4)
    tokens = torch.randint(model.config.vocab_size, (2, 20))
    plain = loss_of(model, tokens).item()
    model.train_quantized(4)
    assert model.mtp.block.ffn.training_bits is None  # exports leave the MTP block as it is
    loss, expected = loss_of(model, tokens), loss_of(rounded, tokens)
    assert torch.equal(loss, expected) and loss.item() != plain
    loss.backward()
    expected.backward()
    for (name, own), other in zip(model.named_parameters(), rounded.parameters(), strict=True):
        if own.grad is not None:
            torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=0, msg=name)
    assert model.blocks[-1].ffn.down.grad.abs().sum() > 0


def test_integers_are_not_trained(make_model):
    model = make_model(small_config(0))
    install(model, quantize_model(model, [], Scheme("minmax", rotation=False))[1])
    with pytest.raises(ValueError, match="this model is quantised"):
        model.train_quantized(4)


def test_training_lowers_the_loss_of_the_stored_experts(make_model):
    model = make_model(small_config(1))
    tokens = torch.randint(model.config.vocab_size, (4, 20))
    model.train_quantized(3)
    experts = [
        p for block in model.blocks if isinstance(block.ffn, MoE) for p in (block.ffn.gate_up, block.ffn.down)
    ]
    optimizer = torch.optim.Adam(experts, lr=0.02)

    def stored_loss() -> float:
        rounded = copy.deepcopy(model)
        round_experts(rounded, 3)
        for block in rounded.blocks:
            block.ffn.training_bits = None
        return loss_of(rounded, tokens).item()

    before = stored_loss()
    for _ in range(8):
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        optimizer.step()
    assert stored_loss() < 0.9 * before
