"""A training step under torch.compile against the same step without."""

import pytest
import torch

from benchmarks.compiled import difference, first_call, training_step
from model.config import preset
from model.transformer import Transformer

TINY = dict(vocab_size=256, hidden_size=64, num_layers=2, num_experts=4, index_top_k=24, mtp_steps=0)
BOUND, BOUND_AT_RELU = 1e-3, 2e-2  # the second for gradients that jump where an indexer's score is zero


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def both(model, tokens, attention, indexer, backend):
    """Results without and with the compiler, twice compiled, and what the compiler did at first."""
    eager = training_step(model, tokens, attention, indexer)()
    step = training_step(model, tokens, attention, indexer, lambda f: torch.compile(f, backend=backend))
    found, notes = first_call(step)
    return eager, (found, step()), notes


def check(eager, results):
    for found in results:
        assert found.keys() == eager.keys()
        for name in eager:
            bound = BOUND_AT_RELU if ".indexer." in name else BOUND
            assert difference({name: found[name]}, {name: eager[name]}) < bound, name


@pytest.mark.parametrize(("attention", "indexer"), [("dense", False), ("sparse", True)])
def test_loss_and_gradients_are_the_same_on_a_cpu(make_model, attention, indexer):
    """Traced and differentiated by the compiler; its C++ takes minutes and is left to the card's test."""
    model = make_model(preset("tiny", **TINY), 3, indexer=True)
    tokens = torch.randint(256, (2, 70))
    eager, results, notes = both(model, tokens, attention, indexer, "aot_eager")
    check(eager, results)
    assert notes["graphs"] > 1 and notes["graph_breaks"] >= 4  # one at every kernel at least


@pytest.mark.gpu
@pytest.mark.parametrize(("attention", "indexer"), [("dense", False), ("sparse", True)])
def test_loss_and_gradients_are_the_same_on_a_card(make_model, attention, indexer):
    model = make_model(preset("tiny", **TINY), 3, indexer=True).cuda()
    tokens = torch.randint(256, (2, 150), device="cuda")
    eager, results, notes = both(model, tokens, attention, indexer, "inductor")
    check(eager, results)
    assert notes["graphs"] > 1


@pytest.mark.gpu
def test_a_step_through_the_kernels_for_hopper_compiles():
    """GLM-5's head sizes in bfloat16. Rounded elsewhere where the compiler fuses, a few experts differ."""
    config = preset("small", num_layers=2, num_heads=64, vocab_size=1024, index_top_k=256, mtp_steps=0)
    model = Transformer(config, seed=3, indexer=True).to("cuda", torch.bfloat16)
    tokens = torch.randint(1024, (1, 8192), device="cuda")
    eager, results, notes = both(model, tokens, "sparse", True, "inductor")
    assert notes["graphs"] > 1
    for found in results:
        assert found.keys() == eager.keys()
        assert difference({"loss": found["loss"]}, {"loss": eager["loss"]}) < 1e-2
        a, b = (torch.cat([x[name].flatten().float() for name in eager]) for x in (found, eager))
        assert torch.cosine_similarity(a, b, dim=0) > 0.95
