"""What a plain forward of the training form says of a request."""

import pytest
import torch

from model.inference.request import Completion, SamplingParams
from model.inference.sampler import Draw, choose
from model.transformer import Transformer


@torch.no_grad()
def plain_logits(model: Transformer, ids: list[int], attention="sparse") -> torch.Tensor:
    """(len(ids), V) of the training forward over one row."""
    tokens_BT = torch.tensor([ids], device=model.embed.weight.device)
    return model.logits(model(tokens_BT, attention=attention).hidden_BTD)[0]


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
