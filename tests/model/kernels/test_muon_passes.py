"""The passes around Newton-Schulz against their reference in float64, wide, tall and many blocks."""

import pytest
import torch

pytest.importorskip("triton")

from model.kernels.muon import reference, triton
from model.kernels.newton_schulz.reference import working_dtype
from model.optim import muon

SHAPES = [(1, 70, 130), (3, 130, 70), (5, 1, 9), (2, 64, 64), (1, 9, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_direction(shape, dtype, draw, error):
    momentum, grad = draw(*shape), draw(*shape)
    out = torch.full((shape[0], *sorted(shape[1:])), float("nan"), dtype=dtype, device=grad.device)
    wanted, new = out.double(), momentum.double()
    norm = reference.nesterov_direction(new, grad.double(), 0.9, wanted)
    parts = triton.nesterov_direction(momentum, grad, 0.9, out)
    assert error(torch.linalg.vector_norm(parts, dim=1), norm[:, 0]) < 1e-6
    assert error(norm[:, 0], torch.linalg.matrix_norm(wanted)) == 0.0
    assert error(momentum, new) < 1e-6
    assert error(out, wanted) < (4e-3 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_update(shape, dtype, draw, error):
    weight, update = draw(*shape), draw(shape[0], *sorted(shape[1:])).to(dtype)
    wanted = weight.double()
    reference.decayed_update(wanted, update.double(), 0.99, -0.3)
    triton.decayed_update(weight, update, 0.99, -0.3)
    assert error(weight, wanted) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("elements", [muon.BATCH_ELEMENTS, 1])
@pytest.mark.parametrize(
    ("shape", "blocks"), [((1024, 4096), 1), ((4096, 1024), 1), ((2048, 512), 16), ((3, 1536, 1100), 1)]
)
def test_step_on_a_card(shape, blocks, elements, draw, error, monkeypatch):
    """Two steps against the same in float64 on a CPU; a second parameter of the shape shares the batch, or
    has one of its own on the other stream.
    """
    monkeypatch.setattr(muon, "BATCH_ELEMENTS", elements)
    start, grads = [draw(*shape) for _ in range(2)], [draw(*shape) for _ in range(4)]

    def run(device, dtype):
        weights = [torch.nn.Parameter(w.to(device, dtype, copy=True)) for w in start]
        optimizer = muon.Muon([(w, blocks) for w in weights], lr=0.05, momentum=0.95, weight_decay=0.1)
        for turn in range(2):
            for weight, grad in zip(weights, grads[2 * turn :], strict=False):
                weight.grad = grad.to(device, dtype)
            optimizer.step()
        return [w.detach().double().cpu() - x.double().cpu() for w, x in zip(weights, start, strict=True)]

    for value, wanted in zip(run("cuda", torch.float32), run("cpu", torch.float64), strict=True):
        assert error(value, wanted) < 3e-2


def test_products_on_a_cpu_are_not_in_bfloat16():
    assert working_dtype(torch.empty(1)) == working_dtype(torch.empty(1).bfloat16()) == torch.float32
    assert working_dtype(torch.empty(1, dtype=torch.float64)) == torch.float64
