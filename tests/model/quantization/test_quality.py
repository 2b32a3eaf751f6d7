"""Measures of what quantisation changes, on models whose differences are known."""

import copy

import numpy as np
import pytest
import torch
from shapes import small_config

from model.quantization.quality import Measured, Row, agreement, measure, perplexity_change


@pytest.fixture
def model(make_model):
    return make_model(
        small_config(1, first_dense_layers=0, index_top_k=5, num_experts=6), indexer=True
    ).eval()


def rows(model, count=3, length=12) -> list[Row]:
    return [Row(torch.randint(model.config.vocab_size, (length,)).tolist()) for _ in range(count)]


def test_perplexity_is_that_of_the_counted_tokens(model):
    first, second = rows(model, 2)
    counted = [n in (3, 7) for n in range(12)]
    found = measure(model, {"all": [first], "few": [Row(second.ids, counted)]}, [], [])
    with torch.inference_mode():
        for name, row, places in (("all", first, range(1, 12)), ("few", second, (3, 7))):
            tokens = torch.tensor([row.ids])
            logprobs = model.logits(model(tokens, attention="sparse").hidden_BTD).log_softmax(-1)[0]
            nats = [-float(logprobs[n - 1, row.ids[n]]) for n in places]
            assert found.perplexity(name) == pytest.approx(np.exp(np.mean(nats)), rel=1e-5)
            assert found.tokens[name].tolist() == [len(nats)]


def test_the_change_of_perplexity_has_an_interval_over_rows():
    before = Measured({"a": np.array([10.0, 20.0, 30.0])}, {"a": np.array([10, 10, 10])})
    after = Measured({"a": np.array([10.0, 21.0, 30.5])}, before.tokens)
    change, low, high = perplexity_change(before, after, "a")
    assert (
        change
        == pytest.approx(after.perplexity("a") / before.perplexity("a") - 1)
        == pytest.approx(np.exp(1.5 / 30) - 1)
    )
    assert low == pytest.approx(0) and change < high <= np.exp(0.1) - 1 + 1e-12
    assert perplexity_change(before, before, "a") == (0, 0, 0)


def test_a_model_agrees_with_itself_and_not_with_another(model, make_model):
    batches = [torch.randint(model.config.vocab_size, (2, 11))]
    before = measure(model, {}, batches, [])
    assert len(before.routes) == len(before.selections) == model.config.num_layers
    assert before.selections[0].shape == (2, 6, 5)  # the queries that see more than 5 keys
    same = {"router_agreement": 1.0, "kl": 0.0, "topk_overlap": 1.0}
    assert agreement(before, measure(model, {}, batches, [])) == pytest.approx(same, abs=1e-6)
    other = make_model(model.config, 99, indexer=True)
    batches = [torch.randint(model.config.vocab_size, (40, 11))]
    before = measure(model, {}, batches, [])
    found = agreement(before, measure(other, {}, batches, []))
    assert 0.02 < found["router_agreement"] < 0.4 and 0.3 < found["topk_overlap"] < 0.95
    said, says = (
        m.logits(m(batches[0], attention="sparse").hidden_BTD).log_softmax(-1) for m in (model, other)
    )
    assert found["kl"] == pytest.approx((said.exp() * (said - says)).sum(-1).mean().item(), rel=1e-4)


def test_one_rerouted_expert_is_counted_once(model):
    batches = [torch.randint(model.config.vocab_size, (1, 4))]
    before, after = measure(model, {}, batches, []), copy.deepcopy(measure(model, {}, batches, []))
    missing = next(e for e in range(6) if e not in after.routes[0][2])
    after.routes[0][2, 0] = missing
    total = sum(route.numel() for route in before.routes)
    assert agreement(before, after)["router_agreement"] == pytest.approx(1 - 1 / total)


def test_drafts_of_an_mtp_block_that_says_what_the_trunk_says_are_accepted(model):
    prompts = [row.ids for row in rows(model)]
    random_drafts = measure(model, {}, [], prompts, new_tokens=12).accept_length
    with torch.no_grad():
        model.head.weight.zero_()  # everything is equally likely, and so is the lowest id
    assert measure(model, {}, [], prompts, new_tokens=12).accept_length > 2.5 > random_drafts >= 1
