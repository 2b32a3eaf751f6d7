"""Muon and Muon Split: the rule by hand, the sharded loop, the per-matrix loop, state."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from shapes import small_config

from model.kernels.newton_schulz.reference import newton_schulz
from model.loss import next_targets, training_losses
from model.optim import build_optimizer
from model.optim.muon import Muon, as_blocks
from model.transformer import Transformer


def polynomial_of_singular_values(x: torch.Tensor) -> torch.Tensor:
    """What five steps make of a matrix, from its SVD in float64."""
    u, s, vt = torch.linalg.svd(x.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ vt


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (48, 12), (1, 9)])
def test_newton_schulz_against_svd(shape):
    x = torch.randn(3, *shape, dtype=torch.float64)
    out = newton_schulz(x)
    for matrix, orthogonal in zip(x, out, strict=True):
        torch.testing.assert_close(orthogonal, polynomial_of_singular_values(matrix))
    torch.testing.assert_close(newton_schulz(x.float()).double(), out, atol=2e-4, rtol=1e-3)
    well_conditioned = (
        torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q + 0.1 * torch.randn(12, 12).double()
    )
    values = torch.linalg.svdvals(newton_schulz(well_conditioned[None])[0])
    assert values.min() > 0.6 and values.max() < 1.3
    assert (newton_schulz(torch.zeros(1, 4, 6)) == 0).all()


def per_matrix_step(weight, gradients, blocks, lr, momentum, decay):
    """The paper's rule, one block at a time in float64."""
    weight, buffer = weight.clone().double(), torch.zeros_like(weight).double()
    for gradient in gradients:
        buffer = momentum * buffer + gradient.double()
        direction = gradient.double() + momentum * buffer
        pieces, old = as_blocks(direction, blocks), as_blocks(weight, blocks)
        rows, cols = pieces.shape[-2:]
        new = [
            (1 - lr * decay) * w - lr * 0.2 * max(rows, cols) ** 0.5 * polynomial_of_singular_values(piece)
            for w, piece in zip(old, pieces, strict=True)
        ]
        weight = torch.stack(new).view_as(weight)
    return weight


@pytest.mark.parametrize(("shape", "blocks"), [((24, 10), 3), ((24, 10), 1), ((5, 12, 7), 2), ((6, 30), 1)])
def test_step_equals_the_rule_on_every_block(shape, blocks):
    weight = torch.nn.Parameter(torch.randn(shape))
    start = weight.detach().clone()
    optimizer = Muon([(weight, blocks)], lr=0.03, momentum=0.95, weight_decay=0.1)
    gradients = [torch.randn(shape) for _ in range(3)]
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
    expected = per_matrix_step(start, gradients, blocks, 0.03, 0.95, 0.1)
    torch.testing.assert_close(weight.detach().double(), expected, atol=1e-4, rtol=1e-3)


def test_no_gradient_no_step_and_zero_gradients_only_decay():
    weights = [torch.nn.Parameter(torch.randn(6, 4)) for _ in range(2)]
    start = [weight.detach().clone() for weight in weights]
    weights[0].grad = torch.zeros(6, 4)
    optimizer = Muon([(weight, 1) for weight in weights], lr=0.5, momentum=0.95, weight_decay=0.1)
    optimizer.step()
    torch.testing.assert_close(weights[0].detach(), start[0] * 0.95)
    assert torch.equal(weights[1], start[1]) and weights[1] not in optimizer.state


def test_without_parameters_a_step_does_nothing():
    Muon([], lr=0.5, momentum=0.95, weight_decay=0.1).step()


def test_update_has_the_rms_of_adam_whatever_the_cut():
    gradient = torch.randn(256, 64)
    for blocks in (1, 4, 16):
        weight = torch.nn.Parameter(torch.zeros(256, 64))
        weight.grad = gradient
        Muon([(weight, blocks)], lr=1.0, momentum=0.95, weight_decay=0.0).step()
        assert 0.15 < weight.detach().square().mean().sqrt() < 0.25


def some_batches(config, count):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(config.vocab_size, (2, 12), generator=generator) for _ in range(count)]


def train(model, optimizer, batches):
    for tokens in batches:
        losses = training_losses(model, tokens, next_targets(tokens), mtp=True)
        optimizer.zero_grad()
        (losses.lm + losses.mtp).backward()
        optimizer.step()


def shard_worker(rank, path, state, config, result):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    model = Transformer(config, indexer=True)
    model.load_state_dict(state)
    optimizer = build_optimizer(model, muon_lr=0.02, adamw_lr=0.01, shard=dist.group.WORLD)
    train(model, optimizer, some_batches(config, 3))
    torch.save(model.state_dict(), f"{result}.{rank}")
    dist.destroy_process_group()


def test_sharded_loop_gives_the_same_step(tmp_path, make_model):
    """Two ranks orthogonalise half of the blocks each; the exchanged result is that of one process."""
    config = small_config(5)
    model = make_model(config, indexer=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    arguments = (tmp_path / "meet", state, config, tmp_path / "out")
    other = mp.get_context("spawn").Process(target=shard_worker, args=(1, *arguments))
    other.start()
    shard_worker(0, *arguments)
    other.join()
    train(model, build_optimizer(model, muon_lr=0.02, adamw_lr=0.01), some_batches(config, 3))
    ranks = [torch.load(tmp_path / f"out.{rank}") for rank in range(2)]
    for name, value in model.state_dict().items():
        assert torch.equal(ranks[0][name], ranks[1][name]), name
        torch.testing.assert_close(
            ranks[0][name], value, atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
        assert (
            name.endswith(("bias", "norm.weight"))
            or ".indexer." in name
            or not torch.equal(value, state[name])
        )


def test_groups_and_blocks(make_model):
    config = small_config(6)
    model = make_model(config, indexer=True)
    names = {id(p): n for n, p in model.named_parameters()}
    optimizer = build_optimizer(model, muon_lr=0.1, adamw_lr=0.2)
    muon, decayed, vectors = optimizer.param_groups
    blocks = {names[id(p)]: b for p, b in zip(muon["params"], muon["blocks"], strict=True)}
    for part in ("q_up", "k_up", "v_up"):
        assert blocks[f"blocks.0.attention.{part}.weight"] == config.num_heads
    assert blocks["blocks.0.attention.indexer.q_up.weight"] == 1
    assert blocks["blocks.1.ffn.gate_up"] == 2 and blocks["blocks.1.ffn.down"] == 1
    assert blocks["mtp.block.ffn.shared.gate_up.weight"] == 2 and blocks["mtp.join.weight"] == 1
    ends = {names[id(p)].split(".", 2)[-1] for p in decayed["params"]}
    assert {"embed.weight", "head.weight"} <= {names[id(p)] for p in decayed["params"]}
    assert {"ffn.router.weight", "attention.indexer.head_weight.weight"} <= ends
    assert all(p.dim() == 1 for p in vectors["params"]) and vectors["weight_decay"] == 0.0
    total = sum(len(g["params"]) for g in optimizer.param_groups)
    assert total == len(names)
    whole = build_optimizer(model, muon_lr=0.1, adamw_lr=0.2, muon_split=False).param_groups[0]
    assert set(whole["blocks"]) == {1, 2}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".indexer." in name)
    frozen = build_optimizer(model, muon_lr=0.1, adamw_lr=0.2)
    assert all(".indexer." in names[id(p)] for g in frozen.param_groups for p in g["params"])


def test_state_is_exact(tmp_path, make_model):
    """Two steps, save, load into fresh objects, two more: the bits of four steps in one go."""
    config = small_config(7)
    batches = some_batches(config, 4)
    rates = {"muon_lr": 0.02, "adamw_lr": 0.01}
    straight, model, resumed = make_model(config), make_model(config), make_model(config, seed=99)
    train(straight, build_optimizer(straight, **rates), batches)

    optimizer = build_optimizer(model, **rates)
    train(model, optimizer, batches[:2])
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "state.pt")
    weights, state = torch.load(tmp_path / "state.pt")
    resumed.load_state_dict(weights)
    fresh = build_optimizer(resumed, **rates)
    fresh.load_state_dict(state)
    train(resumed, fresh, batches[2:])
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    with pytest.raises(ValueError, match="the state is of"):
        fresh.load_state_dict({"muon": {}})
