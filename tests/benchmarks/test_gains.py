"""Gains over seeds, on scores whose differences are known."""

import json

import numpy as np
import pytest

from benchmarks.gains import difference, gains, groups, read_scores, render
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.recipe import load_recipe

RECIPE = load_recipe("tiny")
FAMILIES = ["code/fix", "tools/calc", "tools/chain", "lookup/hop", "safety/refuse", "table/max"]


def test_an_interval_over_seeds_is_students_and_one_over_tasks_is_narrow_where_tasks_agree():
    before = np.full((3, 8), 0.5)
    after = before + np.array([[0.1], [0.2], [0.3]])
    found = difference([before[:, :3], before[:, 3:]], [after[:, :3], after[:, 3:]])
    assert found.seeds == pytest.approx([0.1, 0.2, 0.3])
    assert (found.low, found.mean, found.high) == pytest.approx((0.2, 0.2, 0.2))
    half = 4.302653 * 0.1 / np.sqrt(3)
    assert (found.t_low, found.t_high) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-5)


def test_tasks_are_what_the_first_interval_resamples():
    changes = np.random.default_rng(0).normal(0.1, 0.3, 400)
    found = difference([np.zeros((2, 400))], [np.stack([changes, changes])])
    half = 1.96 * changes.std() / 20
    assert (found.low, found.high) == pytest.approx((changes.mean() - half, changes.mean() + half), abs=0.005)
    assert found.t_low == found.t_high == pytest.approx(changes.mean())


def test_one_seed_has_no_interval_over_seeds():
    found = difference([np.zeros((1, 4))], [np.ones((1, 4))])
    assert (found.t_low, found.t_high) == (-np.inf, np.inf)


def test_a_family_counts_where_it_has_the_largest_share():
    found = groups(RECIPE, FAMILIES)
    assert found == {
        "reasoning": ["code/fix", "tools/calc"],
        "tools": ["tools/chain", "lookup/hop"],
        "general": ["safety/refuse"],
        "others": ["table/max"],
    }


SCORES = {"sft": 0.5, "reasoning_rl": 0.75, "agentic_rl": 0.75, "general_rl": 0.5, "distill": 0.7}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """``runs(tasks)``: two seeds whose tasks all have the score of their checkpoint, and their names."""
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))

    def runs(*tasks: int):
        for number, count in enumerate(tasks):
            items = {
                c: {"sampled": {f"mean/{f}": {"values": [value] * count} for f in [*FAMILIES, "all"]}}
                for c, value in SCORES.items()
            }
            folder = artifacts.artifact_dir(f"seed{number}", "evaluate")
            folder.mkdir(parents=True)
            (folder / "items.json").write_text(json.dumps(items))
        return [f"seed{number}" for number in range(len(tasks))]

    return runs


def test_scores_differences_and_what_came_back(runs):
    found = gains(RECIPE, runs(5, 5))
    assert found["scores"]["reasoning"] == pytest.approx(SCORES)
    row = next(r for r in found["differences"] if (r["before"], r["after"]) == ("sft", "reasoning_rl"))
    assert row["seeds"] == pytest.approx([0.25, 0.25]) and row["low"] == pytest.approx(0.25)
    assert found["recovered"] == pytest.approx({"share": 0.8, "low": 0.8, "high": 0.8})
    text = render(found)
    assert "| reasoning | sft | reasoning_rl | +25.0 | +25.0 to +25.0 |" in text and "80 %" in text


def test_seeds_with_other_tasks_are_refused(runs):
    with pytest.raises(UserError, match="same tasks for every seed: evaluate all of seed0, seed1"):
        read_scores(runs(5, 4))


def test_checkpoints_that_were_not_sampled_are_named(runs):
    [name] = runs(5)
    path = artifacts.artifact_dir(name, "evaluate") / "items.json"
    items = json.loads(path.read_text())
    items["general_rl"]["sampled"] = {}
    del items["distill"]
    path.write_text(json.dumps(items))
    with pytest.raises(UserError, match="of seed0 have no sampled scores of general_rl, distill: name them"):
        read_scores([name])
