"""metrics.jsonl and progress.json, as a resumed and a killed stage leave them."""

import json

import pytest

from pipeline import progress as progress_module
from pipeline.progress import Progress, describe, read_progress
from pipeline.tracking import Metrics, read_metrics


@pytest.fixture
def metrics(tmp_path):
    return Metrics(tmp_path, "tiny", "sft", "identity", {}, {})


def test_values_that_are_not_finite_become_null(metrics, tmp_path):
    metrics.log(1, {"a": 1.5, "b": float("nan"), "c": float("-inf")})
    assert read_metrics(tmp_path) == [{"step": 1, "a": 1.5, "b": None, "c": None}]


def test_rewind_and_a_line_cut_by_a_kill(metrics, tmp_path):
    for step in range(5):
        metrics.log(step, {"a": float(step)})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "a"')
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
    metrics.rewind(2)
    metrics.log(3, {"a": 7.0})
    assert [(row["step"], row["a"]) for row in read_metrics(tmp_path)] == [(0, 0), (1, 1), (2, 2), (3, 7)]


def test_progress_is_one_small_file(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_WRITES", 1000.0)
    progress = Progress(tmp_path, "sft")
    progress.update("train", 0, 100, "step")
    progress.update("train", 1, 100, "step")  # too soon after the other to be written
    assert read_progress(tmp_path)["done"] == 0
    progress.update("train", 100, 100, "step", note="loss 3.1")
    state = read_progress(tmp_path)
    assert (state["stage"], state["phase"], state["done"], state["total"]) == ("sft", "train", 100, 100)
    assert describe(state).startswith("sft: train 100/100 step") and describe(state).endswith("loss 3.1")
    (tmp_path / "progress.json").write_text(json.dumps(state)[:20])
    assert read_progress(tmp_path) is None
