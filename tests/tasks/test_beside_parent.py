"""A quantised checkpoint beside its parent: the same items, paired, and nothing where the items differ."""

import json
import math

import numpy as np
import pytest

from evals.policy import Result
from evals.suite import clustered_share, ratio
from tasks.evaluation.changes import changes
from tasks.evaluation.parents import beside_parents
from tasks.evaluation.scorecard import Scorecard

SUITE = "bits_per_byte"


def card(shift: float, protocols=("same", "same")) -> Scorecard:
    """A parent with documents of many lengths and a child that needs ``shift`` bits a token more, nearly."""
    rng = np.random.default_rng(6)
    tokens = rng.integers(100, 300, 60).astype(float)
    bits = tokens * rng.normal(5.0, 1.0, 60)
    worse = bits + tokens * rng.normal(shift, 0.01, 60)
    hits = (rng.random(60) < 0.6).astype(float)
    lost = np.where(np.arange(60) < 8, 0.0, hits)
    scores = [
        [ratio("per_token", list(b), list(tokens)), clustered_share("exact", list(h), range(60))]
        for b, h in ((bits, hits), (worse, lost))
    ]
    made = Scorecard()
    for name, score, protocol in zip(("distill", "quantize"), scores, protocols, strict=True):
        made.results[name, SUITE], made.protocols[name, SUITE] = Result(score, []), protocol
    return made


@pytest.fixture
def folders(tmp_path):
    for name in ("sft", "distill", "quantize"):
        (tmp_path / name).mkdir()
        config = {"quantization_config": {}} if name == "quantize" else {}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return {name: tmp_path / name for name in ("sft", "distill", "quantize")}


RECORDS = {
    "sft": {"inputs": {"dsa_adapt": "a"}}, "distill": {"inputs": {"sft": "b", "general_rl": "c"}},
    "quantize": {"inputs": {"distill": "d", "sft_data": "e"}},
}  # fmt: skip
NAMES = ["distill", "quantize"]


def test_perplexity_and_scores_with_paired_intervals(folders):
    rows = {row["name"]: row for row in beside_parents(card(0.03), folders, RECORDS, NAMES)}
    assert rows["perplexity"]["before"] == "distill" and rows["perplexity"]["after"] == "quantize"
    assert rows["perplexity"]["change"] == pytest.approx(2**0.03 - 1, abs=0.003)
    assert rows["perplexity"]["low"] < 2**0.03 - 1 < rows["perplexity"]["high"]
    width = rows["perplexity"]["high"] - rows["perplexity"]["low"]
    assert width < 0.01  # documents differ by a bit a token, the two models of one hardly
    lost = round(-60 * rows["exact"]["change"])
    assert 0 < lost <= 8 and rows["exact"]["p"] == pytest.approx(min(1.0, 2 * 0.5**lost))
    assert rows["exact"]["low"] < rows["exact"]["change"] < rows["exact"]["high"]
    assert math.isfinite(rows["per_token"]["low"]) and "p" not in rows["per_token"]


def test_other_items_are_not_compared(folders):
    assert beside_parents(card(0.03, ("one", "other")), folders, RECORDS, NAMES) == []
    assert changes(card(0.03).results, card(0.03).protocols, [("sft", "quantize")]) == []


def test_environments_that_failed_on_other_items_spoil_the_pairs(folders):
    made = card(0.03)
    for name, task in (("distill", "a"), ("quantize", "b")):
        made.results[name, SUITE].attempts.append({"task": task, "mode": "off", "reward": None})
    assert beside_parents(made, folders, RECORDS, NAMES) == []
    made.results["distill", SUITE].attempts[0]["task"] = "b"
    assert len(beside_parents(made, folders, RECORDS, NAMES)) == 3


def test_only_quantised_checkpoints_have_a_parent_here(folders):
    (folders["quantize"] / "config.json").write_text("{}")
    assert beside_parents(card(0.03), folders, RECORDS, NAMES) == []
