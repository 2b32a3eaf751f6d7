"""The mixture of experts: routing by hand, balancing, and the reference kernel against a plain loop."""

import pytest
import torch
import torch.nn.functional as F
from shapes import small_config

from model.kernels.experts.reference import routed_experts
from model.moe import MoE, Router


def loop(x_MD, index_MK, weight_MK, gate_up, down):
    """Token by token, choice by choice."""
    rows = []
    for x, experts, weights in zip(x_MD, index_MK.tolist(), weight_MK, strict=True):
        total = torch.zeros_like(x)
        for expert, weight in zip(experts, weights, strict=True):
            gate, up = (gate_up[expert] @ x).chunk(2)
            total = total + weight * (down[expert] @ (F.silu(gate) * up))
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("experts", [3, 5, 16])  # with 16 some experts stay without a token
def test_routed_experts_equal_a_plain_loop_with_gradients(experts):
    generator = torch.Generator().manual_seed(experts)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    x, gate_up, down, weight = draw(7, 6), draw(experts, 8, 6), draw(experts, 6, 4), draw(7, 2)
    index = torch.stack([torch.randperm(experts, generator=generator)[:2] for _ in range(7)])
    out, expected = routed_experts(x, index, weight, gate_up, down), loop(x, index, weight, gate_up, down)
    torch.testing.assert_close(out, expected)
    probe = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    inputs = (x, weight, gate_up, down)
    torch.testing.assert_close(
        torch.autograd.grad((out * probe).sum(), inputs),
        torch.autograd.grad((expected * probe).sum(), inputs),
    )


def test_router_by_hand():
    config = small_config(0, num_experts=4, experts_per_token=2, routed_scale=2.5)
    router = Router(config)
    with torch.no_grad():
        router.weight.normal_()
        router.bias.copy_(torch.tensor([0.0, 0.9, -0.9, 0.2]))
    x = torch.randn(2, 5, config.hidden_size)
    index, weight, signals = router(x)
    scores = (x.flatten(0, 1) @ router.weight.T).sigmoid()
    for m in range(10):
        chosen = (scores[m] + router.bias).argsort(descending=True)[:2]
        assert index[m].tolist() == chosen.tolist()
        picked = scores[m][chosen]
        torch.testing.assert_close(weight[m], picked / picked.sum() * 2.5)
    assert signals.load_E.tolist() == [(index == e).sum().item() for e in range(4)]
    # DeepSeek-V3's sequence-wise loss, sequence by sequence.
    values = []
    for b in range(2):
        share = torch.stack([(index.view(2, 5, 2)[b] == e).sum() * 4 / (2 * 5) for e in range(4)])
        probability = (scores.view(2, 5, 4)[b] / scores.view(2, 5, 4)[b].sum(-1, keepdim=True)).mean(0)
        values.append((share * probability).sum())
    torch.testing.assert_close(signals.balance, torch.stack(values).mean())


def test_the_bias_moves_against_the_load_and_has_no_gradient():
    router = Router(small_config(0, num_experts=4))
    router.update_bias(torch.tensor([10, 0, 5, 5]), 0.01)
    torch.testing.assert_close(router.bias, torch.tensor([-0.01, 0.01, 0.0, 0.0]))
    assert "bias" not in dict(router.named_parameters()) and "bias" in router.state_dict()


def test_balancing_evens_out_a_skewed_router(make_model):
    config = small_config(1, num_experts=8, experts_per_token=2, num_layers=2, first_dense_layers=1)
    model = make_model(config)
    router = model.routers()[0]
    router.bias.zero_()
    router.bias[0] = 1.0  # every token would choose expert 0
    tokens = torch.randint(config.vocab_size, (4, 64))
    with torch.no_grad():
        before = model(tokens).load_LE
        for _ in range(150):
            model.update_balance(model(tokens).load_LE, bias_step=0.02)
        after = model(tokens).load_LE
    even = 4 * 64 * 2 / 8
    assert before[0].max() / even > 3.5 and after[0].max() / even < 1.5
    assert before.shape == (2, 8) and (before[1] == 0).all()  # the last row is the MTP block's, unused here


def test_first_layers_are_dense_and_the_rest_are_not():
    from model.transformer import Transformer

    model = Transformer(small_config(2, num_layers=3, first_dense_layers=2))
    assert [isinstance(b.ffn, MoE) for b in model.blocks] == [False, False, True]
    assert isinstance(model.mtp.block.ffn, MoE)


def test_router_stays_float32_under_autocast():
    config = small_config(3)
    moe = MoE(config)
    with torch.no_grad():
        for p in moe.parameters():
            p.normal_(0, 0.3)
    x = torch.randn(1, 40, config.hidden_size)
    with torch.autocast("cpu", torch.bfloat16):
        index, weight, _ = moe.router(x)
    expected = moe.router(x)
    assert weight.dtype == torch.float32
    assert torch.equal(index, expected[0]) and torch.equal(weight, expected[1])
