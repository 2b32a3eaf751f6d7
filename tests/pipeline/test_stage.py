"""The stage contract: identity, publication, locks, seeds, damaged inputs."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from flows.status_table import print_status
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.graph import load_graph
from pipeline.recipe import load_recipe
from pipeline.stage import _seed, execute, identity_of


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    return tmp_path


def collect(context):
    (context.out / "documents.txt").write_text(str(context.seed))
    context.facts["device"] = "none"
    return {"documents": 1.0}


def folder(root: Path) -> Path:
    return root / "artifacts/smoke/collect"


def test_a_record_tells_what_made_the_artifact(root):
    execute("collect", collect, "smoke")
    record = artifacts.verify(folder(root))
    recipe = load_recipe("smoke")
    expected = identity_of(load_graph()["collect"], recipe, {})
    assert record["identity"] == artifacts.digest_of(expected)
    assert record["sections"]["collect"] == recipe.collect.model_dump(mode="json")
    assert record["metrics"] == {"documents": 1.0} == json.loads((folder(root) / "metrics.json").read_text())
    assert record["facts"] == {"device": "none"} and record["inputs"] == {}
    assert set(record["files"]) == {"documents.txt", "metrics.json"}
    assert any(path.endswith("collect.py") for path in record["code"])


def test_a_second_run_does_nothing_unless_forced_or_damaged(root, monkeypatch, capsys):
    execute("collect", collect, "smoke")
    first = artifacts.read_record(folder(root))["started"]
    execute("collect", collect, "smoke")
    assert "collect: up to date" in capsys.readouterr().err
    assert artifacts.read_record(folder(root))["started"] == first
    (folder(root) / "documents.txt").write_text("damaged")
    execute("collect", collect, "smoke")
    second = artifacts.read_record(folder(root))["started"]
    assert second > first and artifacts.verify(folder(root))
    monkeypatch.setenv("GLM5_FORCE", "1")
    execute("collect", collect, "smoke")
    assert artifacts.read_record(folder(root))["started"] > second


def test_a_failure_leaves_the_old_artifact(root):
    execute("collect", collect, "smoke")
    before = artifacts.read_record(folder(root))

    def fails(context):
        (context.out / "documents.txt").write_text("half")
        raise UserError("documents/0.parquet is cut off")

    with pytest.raises(UserError, match="cut off"):
        execute("collect", fails, "smoke", force=True)
    assert artifacts.verify(folder(root)) == before
    assert sorted(path.name for path in folder(root).parent.iterdir()) == ["collect"]


def test_a_publication_killed_between_its_renames_is_undone(root):
    execute("collect", collect, "smoke")
    folder(root).rename(folder(root).with_name(".collect.replaced"))
    (folder(root).with_name(".collect.draft")).mkdir()
    first = artifacts.read_record(folder(root).with_name(".collect.replaced"))["started"]
    execute("collect", collect, "smoke")
    assert artifacts.verify(folder(root))["started"] == first
    assert sorted(path.name for path in folder(root).parent.iterdir()) == ["collect"]


def test_folders_that_are_links_are_replaced_and_what_they_lead_to_stays(root):
    execute("collect", collect, "smoke")
    for number in range(2):
        elsewhere = root / f"disk{number}"
        folder(root).rename(elsewhere)
        folder(root).symlink_to(elsewhere)
        steps = root / "runs/smoke/collect/steps"
        steps.symlink_to(elsewhere)
        execute("collect", collect, "smoke", force=True)
        assert artifacts.verify(folder(root)) and not folder(root).is_symlink() and not steps.is_symlink()
        assert (elsewhere / "documents.txt").exists()
    assert [path.name for path in folder(root).parent.iterdir()] == ["collect"]


def test_an_identity_that_is_no_text_is_another(root):
    execute("collect", collect, "smoke")
    scratch = root / "runs/smoke/collect"
    (scratch / "identity").write_bytes(b"\xff")
    (scratch / "steps").mkdir()
    (folder(root) / "documents.txt").unlink()
    execute("collect", collect, "smoke")
    assert artifacts.verify(folder(root)) and not (scratch / "steps").exists()


def test_an_input_that_is_missing_or_changed_is_named(root):
    with pytest.raises(UserError, match="collect is not finished .*run stage collect first"):
        execute("eval_sets", collect, "smoke")
    execute("collect", collect, "smoke")
    (folder(root) / "documents.txt").write_text("x")
    with pytest.raises(UserError, match="documents.txt was changed or damaged .*run stage collect again"):
        execute("eval_sets", collect, "smoke")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"identity": "x", "files": [], "content": "y"}'])
def test_an_incomplete_record_is_none(root, text):
    execute("collect", collect, "smoke")
    (folder(root) / "record.json").write_text(text)
    assert artifacts.read_record(folder(root)) is None
    with pytest.raises(UserError, match="collect is not finished"):
        artifacts.verify(folder(root))


@pytest.mark.parametrize(
    "change",
    [{"files": {"a": 1}}, {"files": {"a": [1]}}, {"metrics": None}, {"sections": []}, {"started": "x"}],
    ids=str,
)
def test_a_record_of_wrong_kinds_is_none_and_a_sentence(root, change):
    execute("collect", collect, "smoke")
    path = folder(root) / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert artifacts.read_record(folder(root)) is None
    with pytest.raises(UserError, match="is not finished"):
        artifacts.verify(folder(root))
    path.write_text("[" * 99_999)
    assert artifacts.read_record(folder(root)) is None


def test_the_table_of_stages_says_when_an_interrupted_one_ended(root, capsys):
    execute("collect", collect, "smoke")
    path = folder(root) / "record.json"
    record = json.loads(path.read_text())
    long = {**record, "started": record["ended"] - 10, "seconds": 9_000_000.0}  # after 104 days in all
    for kept, end in ((long, record["ended"]), ({**record, "seconds": 90_000.0}, record["started"] + 90_000)):
        path.write_text(json.dumps(kept if kept is long else {k: v for k, v in kept.items() if k != "ended"}))
        assert print_status("smoke") == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("collect "))
        assert time.strftime("%m-%d %H:%M", time.localtime(end)) in line


def test_the_table_of_stages_takes_records_without_times_and_numbers(root, capsys):
    execute("collect", collect, "smoke")
    path = folder(root) / "record.json"
    record = json.loads(path.read_text())
    del record["started"]
    path.write_text(json.dumps({**record, "metrics": {"a": "x", "b": 2.0}}))
    assert print_status("smoke") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("collect "))
    assert line.split()[1:4] == ["done", "b", "2"]


def test_an_input_of_another_recipe_is_taken_and_said(root, capsys):
    def run(context):
        (context.out / "any").write_text("x")
        return {}

    (root / "mine.yaml").write_text("extends: smoke\n")
    execute("collect", collect, str(root / "mine.yaml"))
    execute("eval_sets", run, str(root / "mine.yaml"))
    assert "as it is" not in capsys.readouterr().err
    (root / "mine.yaml").write_text("extends: smoke\ndata_seed: 77\n")
    execute("eval_sets", run, str(root / "mine.yaml"))
    said = capsys.readouterr().err
    assert (
        "eval_sets: takes collect as it is, made with other values of data_seed than the recipe has now"
        in said
    )


def test_two_processes_of_one_stage_do_not_meet(root):
    def inner(context):
        with pytest.raises(UserError, match="another process is running this stage"):
            execute("collect", collect, "smoke")
        return collect(context)

    execute("collect", inner, "smoke")


def test_scratch_survives_for_the_same_identity_alone(root):
    scratch = root / "runs/smoke/collect"

    def leaves_and_fails(context):
        (context.scratch / "step.pt").write_text("1")
        raise UserError("killed")

    def looks(context):
        seen.append((context.scratch / "step.pt").exists())
        return collect(context)

    seen: list[bool] = []
    with pytest.raises(UserError):
        execute("collect", leaves_and_fails, "smoke")
    execute("collect", looks, "smoke")
    (scratch / "identity").write_text("another")
    execute("collect", looks, "smoke", force=True)
    assert seen == [True, False]


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """What ``time.time`` gives: ``clock[0]``."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_seconds_are_those_of_all_processes_and_ended_is_the_end(root, clock):
    def stops(context):
        clock[0] += 100
        raise SystemExit(143)

    def is_killed(context):
        clock[0] += 50
        context.progress.update("work", 1, 2)
        clock[0] += 7  # nobody wrote that it was at work
        os.kill(os.getpid(), signal.SIGKILL)

    def finishes(context):
        clock[0] += 20
        return collect(context)

    with pytest.raises(SystemExit):
        execute("collect", stops, "smoke")
    clock[0] += 10_000  # nobody works
    child = os.fork()
    if child == 0:
        try:
            execute("collect", is_killed, "smoke")
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    clock[0] += 10_000
    execute("collect", finishes, "smoke")
    record = artifacts.verify(folder(root))
    assert record["seconds"] == 100 + 50 + 20
    assert (record["started"], record["ended"]) == (21_100, 21_120)

    clock[0] += 10_000
    (folder(root) / "documents.txt").unlink()
    execute("collect", finishes, "smoke")  # what is done is no part of what is made anew
    assert artifacts.verify(folder(root))["seconds"] == 20


def test_seconds_of_another_identity_are_forgotten(root, clock):
    def stops(context):
        clock[0] += 100
        raise UserError("stopped")

    def finishes(context):
        clock[0] += 20
        return collect(context)

    for force, seconds in ((True, 20), (False, 120)):
        with pytest.raises(UserError):
            execute("collect", stops, "smoke", force=True)
        (folder(root) / "record.json").unlink(missing_ok=True)
        execute("collect", finishes, "smoke", force=force)
        assert artifacts.verify(folder(root))["seconds"] == seconds


def test_only_listed_sections_are_read(root):
    def curious(context):
        return {"x": float(context.recipe.sft.epochs)}

    with pytest.raises(AttributeError, match="does not list recipe section 'sft'"):
        execute("collect", curious, "smoke")


def test_a_data_stage_has_and_records_the_seed_of_the_data(root):
    recipe = root / "mine.yaml"
    recipe.write_text("extends: smoke\nseed: 5\ndata_seed: 9\n")
    execute("collect", collect, str(recipe))
    made = root / "artifacts/mine/collect"
    assert artifacts.verify(made)["seed"] == 9 and (made / "documents.txt").read_text() == "9"
    assert _seed(load_graph()["sft"], load_recipe(str(recipe))) == 5
