"""The whole network on a card against the same weights on a CPU, in float32: Triton's kernels against their
references, as the model calls them.
"""

import pytest
import torch

from model.attention import mla
from model.config import preset
from model.loss import next_targets, training_losses

LENGTH, FIRST_OF_SECOND = 150, 61  # of a row, and where its second document begins
# The gradient jumps where a ReLU of the indexer's scores is at zero: a last bit turns one of its pairs on or
# off, and float32 and float64 on the same CPU are up to 4e-3 apart there.
BOUND, BOUND_AT_RELU = 1e-4, 2e-2


def run(model, tokens, start, attention, indexer):
    """Logits, losses and gradients by name, on the CPU."""
    model.zero_grad(set_to_none=True)
    out = model(tokens, start_BT=start, attention=attention)
    results = {"logits": model.logits(out.hidden_BTD)}
    losses = training_losses(
        model, tokens, next_targets(tokens, start), start_BT=start, attention=attention,
        indexer_loss=indexer, mtp=True,
    )  # fmt: skip
    (losses.lm + 0.3 * losses.mtp + 0.1 * losses.balance + losses.indexer_kl).backward()
    results |= {"token losses": losses.token_BT, "mtp": losses.mtp, "indexer KL": losses.indexer_kl}
    results |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach().cpu() for name, value in results.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("expanded_keys", [0, mla.EXPANDED_KEYS], ids=["gathered", "in tiles"])
@pytest.mark.parametrize("packed", [False, True], ids=["one document", "packed"])
@pytest.mark.parametrize(
    ("attention", "indexer"), [("dense", False), ("dense", True), ("sparse", True), ("window", False)]
)
def test_logits_losses_and_gradients_are_those_of_the_cpu(
    make_model, monkeypatch, attention, indexer, packed, expanded_keys
):
    monkeypatch.setattr(mla, "EXPANDED_KEYS", expanded_keys)
    config = preset(
        "tiny", vocab_size=256, hidden_size=64, num_layers=2, num_experts=4, index_top_k=24, mtp_steps=2
    )
    model = make_model(config, 5, indexer=True)
    tokens = torch.randint(config.vocab_size, (2, LENGTH))
    start = None
    if packed:
        start = torch.zeros(2, LENGTH, dtype=torch.int32)
        start[:, FIRST_OF_SECOND:] = FIRST_OF_SECOND
    expected = run(model, tokens, start, attention, indexer)
    start = None if start is None else start.cuda()
    actual = run(model.cuda(), tokens.cuda(), start, attention, indexer)
    assert actual.keys() == expected.keys()
    for name, wanted in expected.items():
        error = (actual[name].double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-12)
        assert error < (BOUND_AT_RELU if ".indexer." in name else BOUND), f"{name}: {error:.1e}"
