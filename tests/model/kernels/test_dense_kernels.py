"""Cross-entropy, Newton-Schulz and routed experts against the float64 references."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.cross_entropy import reference as cross_entropy_reference
from model.kernels.cross_entropy import triton as cross_entropy
from model.kernels.experts import reference as experts_reference
from model.kernels.experts import triton as experts
from model.kernels.newton_schulz import reference as newton_schulz_reference
from model.kernels.newton_schulz import symmetric
from model.kernels.newton_schulz import triton as newton_schulz


def test_cross_entropy(device, dtype, bound, draw, error, monkeypatch):
    M, D, V = 21, 16, 77
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", 8 * V)  # three chunks, the last one short
    x, weight, grad = draw(M, D).to(dtype), draw(V, D).to(dtype), draw(M)
    target = torch.randint(0, V, (M,), generator=torch.Generator().manual_seed(1)).to(device)
    target[[0, 13]] = cross_entropy_reference.IGNORE

    def run(operation, kind):
        leaves = [x.to(kind).clone().requires_grad_(), weight.to(kind).clone().requires_grad_()]
        loss = operation(*leaves, target)
        loss.backward(grad.to(loss.dtype))
        return loss.detach(), *(leaf.grad for leaf in leaves)

    actual = run(cross_entropy.linear_cross_entropy, dtype)
    expected = run(cross_entropy_reference.linear_cross_entropy, torch.float64)
    for value, wanted in zip(actual, expected, strict=True):
        assert error(value, wanted) < bound
    assert actual[0][0] == 0.0 and not actual[1][0].any()


@pytest.mark.parametrize("shape", [(3, 40, 70), (2, 70, 33), (1, 66, 66)])
def test_newton_schulz(shape, dtype, draw, error):
    x = draw(*shape)
    x[0, 3] = 0.0
    value = newton_schulz.newton_schulz(x)
    expected = newton_schulz_reference.newton_schulz(x.double().cpu()).to(x.device)
    # bfloat16 loses digits in each of five steps; the result only has to be orthogonal roughly.
    assert error(value, expected) < (5e-2 if dtype == torch.bfloat16 else 1e-4)
    assert newton_schulz.newton_schulz(torch.zeros_like(x)).abs().max() == 0.0


def ill_conditioned(draw, rows, columns):
    """Three directions, and noise a ten-thousandth as strong."""
    return draw(1, rows, 3) @ draw(1, 3, columns) + 1e-4 * draw(1, rows, columns)


@pytest.mark.parametrize("shape", [(40, 128), (128, 40), (48, 48)])
def test_newton_schulz_of_an_ill_conditioned_matrix(shape, draw, error):
    """Each step multiplies small singular values by up to 3.4, and what rounding made of them: steps taken
    together lose no more than the reference's single ones, which are in bfloat16 on a card, too.
    """
    x = ill_conditioned(draw, *shape)
    value = newton_schulz.newton_schulz(x)
    expected = newton_schulz_reference.newton_schulz(x.double().cpu()).to(x.device)
    single = newton_schulz_reference.newton_schulz(x)
    assert error(value, expected) < 1.2 * error(single, expected) + 1e-3
    assert torch.linalg.svdvals(value.double()[0]).max() < 1.25


def symmetric_inputs(draw, dtype, edge):
    """Two symmetric matrices that commute, a base, scales, and the sum in float64."""
    x = draw(2, edge, edge)
    x = ((x + x.mT) / edge**0.5).to(dtype)
    y = (x.double() @ x.double() + x.double()).to(dtype)
    scale = draw(2).abs()
    wanted = (
        0.5 * torch.eye(edge, device=x.device).double() - 0.25 * x.double() + 2.0 * x.double() @ y.double()
    )
    return x, y, scale, wanted * scale.double()[:, None, None]


@pytest.mark.parametrize("edge", [96, 72])
def test_symmetric_product(edge, dtype, bound, draw, error):
    x, y, scale, wanted = symmetric_inputs(draw, dtype, edge)
    options = {"alpha": 2.0, "base_LAA": x, "beta": -0.25, "diagonal": 0.5, "scale_L": scale, "dtype": dtype}
    out = symmetric.symmetric_product(x, y, **options)
    assert error(out, wanted) < bound
    assert torch.equal(out[:, 64:, :64], out[:, :64, 64:].mT)  # the mirrored tile


@pytest.mark.gpu
@pytest.mark.parametrize("edge", [1024, 1280, 1100])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_large_symmetric_product(edge, kind, draw, error):
    """Two multiples of 256, which Hopper's kernel takes, and one edge that is none; more columns than rows;
    fewer tiles than multiprocessors, and several rounds of them.
    """
    x, y, scale, wanted = symmetric_inputs(draw, torch.float16, edge)
    options = {"alpha": 2.0, "base_LAA": x, "beta": -0.25, "diagonal": 0.5, "scale_L": scale, "dtype": kind}
    out = symmetric.symmetric_product(x, y, **options)
    assert error(out, wanted) < 5e-3
    assert torch.equal(out[:, 256:, :128], out[:, :128, 256:].mT)
    assert torch.equal(out, symmetric.symmetric_product(x, y, **options))
    wide = draw(9, edge, 1608).to(kind)
    out = symmetric.symmetric_product(wide, wide, scale_L=draw(9) * 0 + 0.5, dtype=kind)
    assert error(out, 0.5 * wide.double() @ wide.double().mT) < 5e-3
    assert torch.equal(out[:, 256:, :128], out[:, :128, 256:].mT)


def experts_inputs(draw, dtype, M, D, E, F, K):
    """Expert 2 gets nothing."""
    score = torch.rand(M, E, generator=torch.Generator().manual_seed(4))
    score[:, 2] = -1.0
    index = score.topk(K, -1).indices.to(draw(1).device)
    weight = draw(M, K).abs()
    return draw(M, D).to(dtype), index, weight, (draw(E, 2 * F, D) * 0.3).to(dtype), draw(E, D, F).to(dtype)


def test_expert_row_kernels(device, dtype, bound, draw, error):
    """The passes around the grouped products, put together by hand with a loop over experts."""
    M, D, E, F, K = 9, 24, 4, 16, 2
    x, index, weight, gate_up, down = experts_inputs(draw, dtype, M, D, E, F, K)
    order = index.reshape(-1).argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(M * K, device=device)
    rows = experts.gather(x, order, K)
    assert torch.equal(rows, x[order // K])
    expert = index.reshape(-1)[order]
    hidden = torch.einsum("ad,agd->ag", rows, gate_up[expert])
    active = experts.swiglu(hidden)
    out = experts.combine(torch.einsum("af,adf->ad", active, down[expert]), place, weight)
    doubles = [value.double() for value in (x, weight, gate_up, down)]
    expected = experts_reference.routed_experts(doubles[0], index, *doubles[1:])
    assert error(out, expected) < bound

    grad = draw(M * K, F).to(dtype)
    scaled, grad_hidden, grad_weight = experts.swiglu_backward(hidden, grad, weight.reshape(-1), order)
    leaf, factor = hidden.double().requires_grad_(), weight.double().reshape(-1)[order].requires_grad_()
    gate, up = leaf.chunk(2, -1)
    product = torch.nn.functional.silu(gate) * up * factor.unsqueeze(1)
    product.backward(grad.double())
    assert error(scaled, product.detach()) < bound
    assert error(grad_hidden, leaf.grad) < bound
    assert error(grad_weight[order], factor.grad) < bound


@pytest.mark.gpu
def test_routed_experts(draw, error):
    x, index, weight, gate_up, down = experts_inputs(draw, torch.bfloat16, 301, 128, 8, 64, 3)
    grad = draw(301, 128)

    def run(operation, kind):
        leaves = [value.to(kind).clone().requires_grad_() for value in (x, gate_up, down)]
        factor = weight.to(torch.promote_types(kind, torch.float32)).clone().requires_grad_()
        out = operation(leaves[0], index, factor, leaves[1], leaves[2])
        out.backward(grad.to(kind))
        return out.detach(), *(leaf.grad for leaf in leaves), factor.grad

    actual = run(experts.routed_experts, torch.bfloat16)
    expected = run(experts_reference.routed_experts, torch.float64)
    for value, wanted in zip(actual, expected, strict=True):
        assert error(value, wanted) < 1e-2
    again = run(experts.routed_experts, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))
