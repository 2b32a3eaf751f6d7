"""Packed rollouts: every value at its place, and the loss of a step whatever the packing."""

import random

import numpy as np
import pytest
import torch

from model.hub import load_folder
from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.loss import IGNORE
from tasks.rl.batches import Sample, pack
from tasks.rl.losses.icepop import IcePop
from tasks.rl.objective import PolicyObjective, freeze_indexer
from tasks.rl.trajectory import Segment
from tasks.training.micro_batches import Accumulator

ANY = IcePop(beta=1e9)  # random log-probabilities are far from the model's: mask none of them


def segment(rng, sampled=None, experts=False):
    made = Segment()
    for turn in range(rng.randrange(1, 4)):
        made.read([rng.randrange(5, 400) for _ in range(rng.randrange(1, 6))])
        count = rng.randrange(1, 8)
        made.sample(
            [rng.randrange(5, 400) for _ in range(count)],
            [-rng.random() for _ in range(count)],
            [turn] * count,
        )
    if experts:
        made.experts = np.array(
            [[[rng.randrange(4) for _ in range(2)]] for _ in range(len(made) - 1)], np.int16
        )
    return made


def samples(count, seed, experts=False):
    rng = random.Random(seed)
    return [
        Sample(segment(rng, experts=experts), rng.uniform(-2, 2), rng.random(), f"s{n}") for n in range(count)
    ]


def test_values_stand_where_their_token_is_predicted():
    chosen = samples(9, 1, experts=True)
    batches = pack(chosen, 40, 2, 0)
    seen = set()
    for batch in batches:
        for row in range(2):
            starts = [
                s for s in batch.start_BT[row].unique().tolist() if (batch.start_BT[row] == s).sum() > 1
            ]
            for start in starts:
                places = (batch.start_BT[row] == start).nonzero().flatten()
                ids = batch.tokens_BT[row, places].tolist()
                (one,) = [sample for sample in chosen if sample.segment.ids == ids]
                seen.add(one.name)
                own, n = one.segment, len(ids)
                for place in range(n - 1):
                    at = start + place
                    assert batch.target_BT[row, at] == (ids[place + 1] if own.sampled[place + 1] else IGNORE)
                    assert batch.weight_BT[row, at] == pytest.approx(one.weight * own.sampled[place + 1])
                    assert batch.rollout_BT[row, at] == pytest.approx(own.logprobs[place + 1])
                    assert batch.advantage_BT[row, at] == pytest.approx(one.advantage)
                    assert (batch.route_LBTK[:, row, at].numpy() == own.experts[place]).all()
                assert batch.target_BT[row, start + n - 1] == IGNORE
                assert (batch.route_LBTK[:, row, start + n - 1] == -1).all()
    assert seen == {sample.name for sample in chosen}


def test_advantages_of_single_tokens():
    one = Segment()
    one.read([7])
    one.sample([8, 9], [-1.0, -1.0], [0, 0])
    (batch,) = pack([Sample(one, [0.0, 3.0, 5.0], 1.0, "s")], 4, 1, 0)
    assert batch.advantage_BT[0].tolist() == [3.0, 5.0, 0.0, 0.0]


def test_what_does_not_fit_a_row_is_named():
    with pytest.raises(ValueError, match="s3 has .* more than a row's 5"):
        pack(samples(4, 0)[3:], 5, 1, 0)


@pytest.fixture
def model(checkpoint):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = load_folder(checkpoint)
    freeze_indexer(made)
    yield made
    torch.set_num_threads(threads)


@pytest.mark.parametrize("experts", [False, True])
def test_the_gradient_does_not_depend_on_the_packing(model, experts):
    chosen = samples(11, 5, experts)
    gradients = []
    for length, micro_batch in ((40, 1), (64, 3), (128, 2)):
        model.zero_grad(set_to_none=True)
        values = Accumulator(PolicyObjective(model, ANY), model.parameters())(
            pack(chosen, length, micro_batch, 0), 0
        )
        gradients.append(
            (values["train/loss"], [p.grad.clone() for p in model.parameters() if p.grad is not None])
        )
    for loss, found in gradients[1:]:
        assert loss == pytest.approx(gradients[0][0], rel=1e-4)
        for one, other in zip(found, gradients[0][1], strict=True):
            assert torch.allclose(one, other, atol=1e-5, rtol=1e-3)


def test_the_indexer_gets_no_gradient(model):
    Accumulator(PolicyObjective(model, ANY), model.parameters())(pack(samples(3, 6), 64, 1, 0), 0)
    assert all(p.grad is None for a in model.attentions() for p in a.indexer.parameters())
    assert model.head.weight.grad.abs().sum() > 0


def test_rollouts_of_the_engine_have_no_mismatch(model, tokenizer):
    """At equal weights, with replayed experts and without: KL(engine || trainer) is rounding alone."""
    engine = Engine(model, record_experts=True)
    rng = random.Random(3)
    prompts = [[rng.randrange(5, 400) for _ in range(rng.randrange(3, 30))] for _ in range(12)]
    chosen = []
    for n, completion in enumerate(engine.generate(prompts, SamplingParams(40, seed=1))):
        one = Segment()
        one.read(prompts[n])
        one.sample(completion.ids, [t.logprob for t in completion.tokens], [0] * len(completion.ids))
        one.keep_experts(completion.experts)
        chosen.append(Sample(one, 1.0, 0.01, f"s{n}"))
    accumulate = Accumulator(PolicyObjective(model, IcePop()), model.parameters())
    values = accumulate(pack(chosen, 128, 2, 0), 0)
    assert values["mismatch_kl"] < 1e-8 and values["off_policy/masked"] == 0
    for sample in chosen:
        sample.segment.logprobs = [
            x - 0.3 * s for x, s in zip(sample.segment.logprobs, sample.segment.sampled, strict=True)
        ]
    shifted = accumulate(pack(chosen, 128, 2, 0), 0)["mismatch_kl"]
    assert shifted == pytest.approx(np.expm1(0.3) - 0.3, rel=1e-3)
