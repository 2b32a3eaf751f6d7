"""Two evaluations side by side: found by name or folder, paired by item, refused under unlike protocols."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evals.policy import Result
from evals.suite import ratio, share
from pipeline.errors import UserError
from tasks.evaluation.scorecard import Scorecard, finite
from tasks.reporting.compare import compare, find
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
N = 40


def evaluation(
    folder: Path, right: dict[str, list[float]], protocol: str = "aa", bits: float = 2.0, failed: str = ""
) -> None:
    """An evaluate artifact of pretrain and of checkpoints with these answers, as the stage writes it.

    ``failed``: a task that no environment judged.
    """
    attempts = [{"task": name, "mode": "off", "reward": None if name == failed else 1.0} for name in "xy"]
    card = Scorecard()
    for name in ("pretrain", *right):
        hits = right.get(name, [0.0] * N)
        shares = [share("exact/off", hits), share("exact/all/table/max", hits[:10])]
        results = {
            "environments": shares,
            "bits_per_byte": [ratio("all", [bits * n for n in range(1, 9)], [*range(1, 9)])],
        }
        for suite, scores in results.items():
            card.results[name, suite] = Result(scores, [], attempts if suite == "environments" else [])
            card.protocols[name, suite] = f"{protocol}-{suite}" if suite == "environments" else suite
    rating = {
        "checkpoint": "sft", "suite": "arena", "name": "rating", "value": 1000.0, "low": None, "high": None,
        "n": 4, "protocol": "of these",
    }  # fmt: skip
    content = {
        "rows": [*card.rows(), rating],
        "changes": [],
        "checkpoints": {name: name * 9 for name in right},
    }
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps(finite(content)))
    (folder / "items.json").write_text(json.dumps(finite(card.items())))


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """Recipes a and b; b's last checkpoint has eight of forty more right, and none less."""
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    first = [1.0] * 12 + [0.0] * 28
    second = [1.0] * 20 + [0.0] * 20
    evaluation(tmp_path / "artifacts/a/evaluate", {"sft": first})
    evaluation(tmp_path / "artifacts/b/evaluate", {"sft": first, "distill": second}, bits=1.9)
    return tmp_path


def line(table: str, label: str) -> str:
    return next(" ".join(line.split()) for line in table.splitlines() if line.strip().startswith(label))


def test_the_last_checkpoints_of_two_recipes_are_compared_in_pairs(root):
    table = compare("a", "b")
    assert "A  a/sft (sftsftsftsft)" in table and "B  b/distill (distilldisti)" in table
    row = line(table, "Exact match, thinking off")
    assert row.startswith("Exact match, thinking off 30 % 50 % +20.0 points") and row.endswith("40 better")
    low = float(row.split("+20.0 points ")[1].split(" points")[0])
    apart = 20 - 100 * 1.96 * np.sqrt(0.3 * 0.7 / N + 0.5 * 0.5 / N)  # what unpaired proportions would give
    assert apart < 0 < low
    assert line(table, "Bits per byte, held-out documents").startswith(
        "Bits per byte, held-out documents 2.000 1.900 -0.100"
    )
    assert line(table, "table/max").endswith("equal")  # both have the first ten right
    assert "arena" not in table


def test_a_recipe_and_its_own_stage_differ_in_nothing(root):
    assert line(compare("a", "b/sft"), "Exact match").endswith("equal")
    changed = line(compare("b/distill", "a/sft"), "Exact match")
    assert "-20.0 points" in changed and changed.endswith("40 worse")


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [("b", "distill"), ("b/sft", "sft"), ("artifacts/b", "distill"), ("artifacts/b/evaluate", "distill"),
     ("artifacts/b/sft", "sft")],
)  # fmt: skip
def test_names_and_folders(root, monkeypatch, name, checkpoint):
    monkeypatch.chdir(root)
    (root / "artifacts/b/sft").mkdir()
    assert find(name).checkpoint == checkpoint


def test_items_that_failed_on_one_side_are_not_paired_with_others(root):
    for recipe, failed in (("c", "x"), ("d", "y"), ("e", "y")):
        evaluation(root / f"artifacts/{recipe}/evaluate", {"sft": [1.0] * N}, failed=failed)
    table = compare("c", "d")
    assert "Exact match" not in table and "Bits per byte" in table
    assert table.endswith("not paired, since environments failed on other items: environments")
    table = compare("d", "e")
    assert line(table, "Exact match").endswith("equal") and "not paired" not in table


def test_unlike_protocols_are_refused(root):
    evaluation(root / "artifacts/c/evaluate", {"sft": [1.0] * N}, protocol="bb")
    with pytest.raises(
        UserError, match=r"not scored under one protocol: environments \(aa-environme and bb-environme\)"
    ):
        compare("a", "c")


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("none", None, "none has no evaluation: .*/none/evaluate/scores.json is not there"),
        ("b/midtrain", None, r"did not score midtrain \(it scored pretrain, sft, distill\)"),
        (
            "b",
            lambda f: (f / "items.json").unlink(),
            "kept no values by item; run stage evaluate with --force",
        ),
        ("b", lambda f: (f / "scores.json").write_text("{"), "scores.json cannot be read"),
        (
            "b",
            lambda f: (f / "scores.json").write_text("[]"),
            "scores.json holds no scores of any checkpoint",
        ),
        (
            "b",
            lambda f: (f / "scores.json").write_text('{"rows": [{}]}'),
            "holds no scores of any checkpoint",
        ),
        ("b", lambda f: (f / "items.json").write_text("null"), "items.json holds no scores of distill"),
        (
            "b",
            lambda f: (f / "items.json").write_text('{"distill": {"environments": {}}}'),
            "items.json of b/distill .* holds no scores of environments/exact/off",
        ),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_sentence(root, name, damage, sentence):
    if damage:
        damage(root / "artifacts/b/evaluate")
    (root / "artifacts/b/midtrain").mkdir()
    with pytest.raises(UserError, match=sentence):
        compare("a", name)


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "../none", "artifacts/none/sft"])
def test_a_folder_that_is_not_there_is_named_as_it_was_given(root, monkeypatch, name):
    monkeypatch.chdir(root)
    with pytest.raises(UserError) as raised:
        find(name)
    place = Path(name) / "evaluate/scores.json"
    assert str(raised.value).startswith(f"{name} has no evaluation: {place} is not there; run stage evaluate")


def change_scores(folder: Path, file: str, change) -> None:
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


EXACT = ("distill", "environments", "exact/off")
DAMAGES = [
    ("scores.json", lambda c: c["rows"][0].pop("high"), "holds no scores of any checkpoint"),
    ("scores.json", lambda c: c["rows"][0].update(value="x"), "holds no scores of any checkpoint"),
    ("items.json", lambda c: c["distill"].update(environments=[]), "holds no scores of distill"),
    ("items.json", lambda c: c["distill"]["environments"].update(unjudged=3), "no scores of environments:"),
    ("items.json", lambda c: c["distill"]["environments"].update({EXACT[2]: {}}), "no scores of .*exact/off"),
    ("items.json", lambda c: c["distill"]["environments"][EXACT[2]].update(values=["x"]), "no scores of"),
    ("items.json", lambda c: c["distill"]["environments"][EXACT[2]]["values"].pop(), "do not pair up: .* 39"),
]


@pytest.mark.parametrize(("file", "change", "sentence"), DAMAGES, ids=range(len(DAMAGES)))
def test_values_that_are_none_are_said_in_a_sentence(root, file, change, sentence):
    change_scores(root / "artifacts/b/evaluate", file, change)
    with pytest.raises(UserError, match=sentence):
        compare("a", "b")


def test_a_score_that_was_nan_is_left_out(root):
    def without(content: dict) -> None:
        for row in content["rows"]:
            row["value"] = None if row["name"] == "all" else row["value"]
        content["checkpoints"] = None  # as in a file of other hands

    change_scores(root / "artifacts/b/evaluate", "scores.json", without)
    table = compare("a", "b")
    assert "Exact match" in table and "Bits per byte" not in table


def test_the_command_fails_with_one_sentence(root):
    evaluation(root / "artifacts/c/evaluate", {"sft": [1.0] * N}, protocol="bb")
    command = [sys.executable, "-m", "flows.cli", "report", "--compare", "a", "c"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: a/sft") and done.stderr.count("\n") == 1
