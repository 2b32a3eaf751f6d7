"""Stages through DVC and bare, in a real repository: order, skipping, force, failures, waiting, kill -9."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.executors import BUSY, niceness
from pipeline.graph import load_graph
from pipeline.recipe.load import recipe_names
from tests.waiting import PATIENCE, wait_until


def values(folder: Path, stage: str, recipe: str = "tiny"):
    return json.loads((folder / "artifacts" / recipe / stage / "values.json").read_text())


def record(folder: Path, stage: str) -> dict:
    return json.loads((folder / "artifacts" / "tiny" / stage / "record.json").read_text())


def start(folder: Path, environment: dict, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", *arguments], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def steps_done(folder: Path) -> int:
    try:
        return len(json.loads((folder / "runs/tiny/sft/step.json").read_text()))
    except OSError:
        return 0


def children_of(name: str, folder: Path) -> list[int]:
    """Processes that run module ``name`` in ``folder``."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                here = (process / "cwd").resolve() == folder.resolve()
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if here and name.encode() in command and state != "Z":
                found.append(int(process.name))
    return found


def test_bare_all_stages_then_nothing_then_only_what_changed(bare, glm5):
    first = glm5(bare, "run")
    assert first.returncode == 0 and "5 stages ran, 0 were up to date" in first.stdout, first.stdout
    assert values(bare, "report")[1]["curate"] == ["curate", {"collect": ["collect", {}]}]
    assert not (bare / "dvc.lock").exists()
    assert "0 stages ran, 5 were up to date" in glm5(bare, "run").stdout
    changed = glm5(bare, "run", "--set", "sft.optimizer.muon_lr=0.5")
    assert "recipes/tiny.yaml: sft.optimizer.muon_lr 0.005 -> 0.5" in changed.stdout
    assert "= tokenizer: up to date" in changed.stdout and "2 stages ran" in changed.stdout
    assert values(bare, "sft")[1] == 0.5


def test_through_dvc_nothing_changed_then_one_stage_changed(finished, glm5, dvc):
    assert "0 stages ran, 5 were up to date" in glm5(finished, "run").stdout
    assert "1 stage ran" in glm5(finished, "run", "sft", "--set", "optimizer.muon_lr=0.25").stdout
    lock = yaml.safe_load((finished / "dvc.lock").read_text())
    assert lock["stages"]["sft@tiny"]["params"]["recipes/tiny.yaml"]["sft"]["optimizer"]["muon_lr"] == 0.25
    status = dvc("status")
    assert "report@tiny" in status and "sft@tiny" not in status
    dvc("repro")
    assert "up to date" in dvc("status")


def test_files_of_a_folder_source_that_changed_are_seen_though_dvc_does_not_watch_them(repository, glm5):
    (repository / "mine").mkdir()
    (repository / "mine/a.txt").write_text("one")
    sources = [{"kind": "folder", "name": "mine", "path": "mine"}]
    recipe = {"extends": "tiny", "collect": {"sources": sources}, "pretrain_data": {"mix": {"mine": 1.0}}}
    (repository / "recipes/own.yaml").write_text(yaml.safe_dump(recipe))
    assert "1 stage ran" in glm5(repository, "run", "collect", "--recipe", "own").stdout
    assert "0 stages ran" in glm5(repository, "run", "collect", "--recipe", "own").stdout
    (repository / "mine/a.txt").write_text("two")
    assert "source mine changed" in glm5(repository, "status", "--recipe", "own").stdout
    assert "1 stage ran" in glm5(repository, "run", "collect", "--recipe", "own").stdout
    assert "0 stages ran" in glm5(repository, "run", "collect", "--recipe", "own").stdout


def test_what_runs_write_is_no_change_of_the_code(repository, glm5):
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
        return subprocess.run(
            command, cwd=repository, check=True, capture_output=True, text=True, timeout=PATIENCE
        ).stdout.strip()

    def recorded(recipe: str) -> str:
        assert glm5(repository, "run", "collect", "--force", "--recipe", recipe).returncode == 0
        return json.loads((repository / f"artifacts/{recipe}/collect/record.json").read_text())["git_commit"]

    recorded("tiny")
    git("add", "params.yaml", "dvc.lock")
    git("commit", "-qm", "as a clone has it")
    assert recorded("smoke") == git("rev-parse", "HEAD")  # though both are other files now:
    assert git("status", "--porcelain", "-uno").split() == ["M", "dvc.lock", "M", "params.yaml"]
    recipe = repository / "recipes/tiny.yaml"
    recipe.write_text(recipe.read_text() + "# mine\n")
    assert recorded("smoke") == git("rev-parse", "HEAD") + "+changes"


def test_what_was_pushed_to_a_folder_is_pulled_back(finished, dvc):
    before = values(finished, "sft")
    dvc("remote", "add", "--local", "--default", "store", str(finished.parent / "store"))
    dvc("push")
    for name in ("artifacts", ".dvc/cache"):
        shutil.rmtree(finished / name)
    dvc("pull")
    assert values(finished, "sft") == before
    assert "sft@tiny" in dvc("dag")


@pytest.fixture
def dvc(finished, environment):
    """``dvc("status")`` in the finished repository: its output, or a failure with its errors."""

    def call(*arguments: str) -> str:
        path = f"{Path(sys.executable).parent}:{environment['PATH']}"
        done = subprocess.run(
            [sys.executable, "-m", "dvc", *arguments], cwd=finished, env={**environment, "PATH": path},
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_stages_run_side_by_side_where_the_graph_allows(bare, glm5):
    done = glm5(bare, "run", MINI_MEET="curate tokenizer")
    assert done.returncode == 0, done.stdout  # neither ended before the other had begun
    curate, tokenizer, sft = (record(bare, name) for name in ("curate", "tokenizer", "sft"))
    assert sft["started"] > max(r["started"] + r["seconds"] for r in (curate, tokenizer))


def test_from_and_only_and_force(bare, glm5):
    glm5(bare, "run")
    before = {name: record(bare, name)["started"] for name in ("collect", "curate", "sft", "report")}
    assert "2 stages ran, 0 were up to date" in glm5(bare, "run", "--from", "sft", "--force").stdout
    after = {name: record(bare, name)["started"] for name in before}
    assert after["collect"] == before["collect"] and after["curate"] == before["curate"]
    assert after["sft"] > before["sft"] and after["report"] > before["report"]
    assert "1 stage ran" in glm5(bare, "run", "curate", "--force").stdout


def test_a_stage_that_fails_says_why_and_what_is_finished_stays(bare, glm5):
    (bare / "broken").write_text("curate")
    done = glm5(bare, "run")
    assert done.returncode == 1
    assert "error: curate: documents/0.parquet is cut off: fetch it again" in done.stdout
    assert "not started, since an input failed: sft, report" in done.stdout
    assert values(bare, "tokenizer")[0] == "tokenizer"
    assert not (bare / "artifacts/tiny/curate").exists()
    (bare / "broken").unlink()
    assert "3 stages ran, 2 were up to date" in glm5(bare, "run").stdout


def test_a_fault_of_the_code_is_shown_by_its_exception(bare, glm5):
    (bare / "mini/collect.py").write_text("import json\nprint('x')\njson.loads('{')\n")
    done = glm5(bare, "run", "collect")
    assert done.returncode == 1
    assert "error: collect: json.decoder.JSONDecodeError: Expecting property name" in done.stdout


@pytest.fixture
def start_sft(finished, environment, hold):
    """``start_sft(3)``: stage ``sft`` of another learning rate, held after 3 of its 30 steps."""

    def begin(steps: int) -> subprocess.Popen:
        hold(finished, steps)
        run = start(finished, environment, "sft", "--set", "optimizer.muon_lr=0.125")

        def reached() -> bool:
            assert run.poll() is None, run.communicate()[0]
            return steps_done(finished) == steps  # an earlier run left 30

        wait_until(reached, f"step {steps}")
        return run

    return begin


def test_kill_9_of_a_training_stage_then_the_same_result(finished, glm5, start_sft, hold):
    run = start_sft(5)
    for process in children_of("mini.sft", finished):
        os.kill(process, signal.SIGKILL)
    output = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 1 and "killed" in output, output
    assert steps_done(finished) == 5
    hold(finished, None)
    assert glm5(finished, "run", "sft").returncode == 0
    assert record(finished, "sft")["facts"]["resumed"] == 5
    assert values(finished, "sft") == [step * 0.125 for step in range(30)]


def test_kill_9_of_the_runner_ends_its_stages_and_the_next_run_goes_on(finished, glm5, start_sft, hold):
    run = start_sft(3)
    run.kill()
    run.wait(PATIENCE)
    wait_until(lambda: not children_of("mini.sft", finished), "the end of the stage")
    reached = steps_done(finished)
    assert 3 <= reached <= 4  # what it did on SIGTERM is kept
    hold(finished, None)
    assert glm5(finished, "run", "sft").returncode == 0
    assert record(finished, "sft")["facts"]["resumed"] == reached


def test_ctrl_c_ends_the_stages_after_they_saved(finished, start_sft):
    run = start_sft(3)
    run.send_signal(signal.SIGINT)
    output = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 130 and "what was finished is kept" in output
    assert not children_of("mini.sft", finished)
    assert 3 <= steps_done(finished) <= 4


def test_a_second_run_waits_for_the_first(finished, environment, start_sft, hold):
    first = start_sft(2)
    second = start(finished, environment, "sft")
    log = finished / "runs/tiny/sft/log.txt"
    wait_until(lambda: any(words in log.read_text() for words in BUSY), "the second at the first's files")
    hold(finished, None)
    assert first.wait(PATIENCE) == 0
    output = second.communicate(timeout=PATIENCE)[0]
    assert second.returncode == 0 and "1 was up to date" in output, output
    assert record(finished, "sft")["facts"]["resumed"] == 0


def test_a_recipe_is_made_active_for_dvc(repository, glm5):
    assert (
        "recipe smoke is now active in params.yaml"
        in glm5(repository, "run", "--recipe", "smoke", "collect").stdout
    )
    params = yaml.safe_load((repository / "params.yaml").read_text())["recipes"]
    assert params == {"tiny": {"extends": "tiny"}, "smoke": {"extends": "tiny"}}
    assert values(repository, "collect", "smoke") == ["collect", {}]


def test_wrong_names_and_values_are_one_sentence(repository, glm5):
    for arguments, sentence in [
        (("run", "nope"), "error: there is no stage 'nope' in dvc.yaml (stages: collect, curate"),
        (
            ("run", "--recipe", "nope"),
            f"error: there is no recipe recipes/nope.yaml (in recipes/: {', '.join(recipe_names())})",
        ),
        (("run", "--set", "sft.optimizer.muon_rl=1"), "did you mean 'muon_lr'?"),
        (
            ("run", "--set", "sft.optimizer.muon_lr=-1"),
            "sft.optimizer.muon_lr: Input should be greater than 0",
        ),
        (("run", "sft", "--from", "collect"), "error: stages to run alone (sft) and a stage to start from"),
        (("run", "--set", "sft"), "error: override 'sft' is not of the form key=value"),
        (("report",), "error: there is no report in artifacts/tiny/report yet"),
    ]:
        done = glm5(repository, *arguments)
        assert done.returncode == 1
        assert sentence in done.stdout and done.stdout.count("\n") == 1, done.stdout
    assert subprocess.run(["git", "diff", "--quiet"], cwd=repository, timeout=PATIENCE).returncode == 0


def test_the_flow_s_module_needs_no_prefect(bare, environment):
    code = (
        "import runpy, sys; sys.modules['prefect'] = None; sys.argv = ['x', 'curate', 'sft'];"
        "runpy.run_module('flows.full_pipeline', run_name='__main__')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=bare, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "error: curate: artifacts/tiny/collect is not finished" in done.stdout
    assert "not started, since an input failed: sft" in done.stdout


def test_status_before_anything_ran(bare, glm5):
    lines = [line.split() for line in glm5(bare, "status").stdout.splitlines()]
    assert lines[1] == ["collect", "missing", "can", "run"]
    assert lines[4] == ["sft", "missing", "needs", "curate,", "tokenizer"]


def test_status_tells_what_would_run_and_why(finished, glm5):
    assert glm5(finished, "status").stdout.count(" done ") == 5
    path = finished / "recipes/tiny.yaml"
    path.write_text(path.read_text().replace("muon_lr: 0.005,", "muon_lr: 0.006,"))
    (finished / "mini/curate.py").write_text((finished / "mini/curate.py").read_text() + "# changed\n")
    lines = {line.split()[0]: line for line in glm5(finished, "status").stdout.splitlines()}
    assert "code mini/curate.py changed" in lines["curate"] and " stale " in lines["curate"]
    assert "sft.optimizer.muon_lr 0.005 -> 0.006 changed" in lines["sft"]
    assert "input curate is stale" in lines["report"] and " done " in lines["tokenizer"]


def test_a_comment_in_a_data_stage_does_not_retrain(finished, glm5):
    (finished / "mini/curate.py").write_text((finished / "mini/curate.py").read_text() + "# changed\n")
    trained = record(finished, "sft")["started"]
    done = glm5(finished, "run")
    assert "+ curate: done" in done.stdout and "= sft: up to date" in done.stdout
    assert record(finished, "sft")["started"] == trained


def test_data_that_training_waits_for_goes_first():
    graph = load_graph()
    yields = {name: niceness(stage, graph) for name, stage in graph.items()}
    assert yields["pretrain"] == yields["sft"] == 0
    assert 0 < yields["curate"] <= yields["pretrain_data"]
    assert yields["pretrain_data"] < yields["midtrain_data"] < yields["sft_data"] <= 19
