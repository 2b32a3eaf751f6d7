"""Small random models for the engine's tests, and what a plain forward says of a request."""

import sys
from pathlib import Path

import pytest
import torch

from model.inference.request import Completion, SamplingParams
from model.inference.sampler import Draw, choose
from model.transformer import Transformer

sys.path.append(str(Path(__file__).parents[1]))

from shapes import small_config


@pytest.fixture
def tiny_model(make_model):
    """``tiny_model(seed, dtype)``: sparse attention that really selects, and an MTP block."""

    def make(seed: int = 0, dtype=torch.float32, **changes) -> Transformer:
        config = small_config(seed, num_layers=2, index_top_k=7, max_positions=128, **changes)
        return make_model(config, seed, indexer=True, dtype=dtype)

    return make


@torch.no_grad()
def plain_logits(model: Transformer, ids: list[int], attention="sparse") -> torch.Tensor:
    """(len(ids), V) of the training forward over one row."""
    return model.logits(model(torch.tensor([ids]), attention=attention).hidden_BTD)[0]


def check_completion(
    models: dict[int, Transformer],
    prompt: list[int],
    params: SamplingParams,
    completion: Completion,
    atol: float,
    attention: str = "sparse",
) -> None:
    """Each token is what the training forward of its version draws, with that forward's log-probability."""
    assert completion.finish != "error", completion.error
    ids, first = [*prompt, *completion.ids], len(prompt) - 1
    for version in {token.version for token in completion.tokens}:
        logits = plain_logits(models[version], ids, attention)[first:-1]
        logprobs = logits.log_softmax(-1)
        drawn = choose(logits, [Draw(params, params.seed, n) for n in range(len(completion.ids))]).tolist()
        for number, token in enumerate(completion.tokens):
            if token.version == version:
                assert token.id == drawn[number]
                assert token.logprob == pytest.approx(float(logprobs[number, token.id]), abs=atol)
