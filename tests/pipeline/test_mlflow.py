"""A stage in a real MLflow store: nested run, parameters, curves, datasets, lineage; killed and failed."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from pipeline import mlflow_mirror, mlflow_sink
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
STAGE = """
import json, os, sys, time
from pipeline import artifacts
from pipeline.tracking import Metrics

folder = artifacts.run_dir("tiny", "sft")
folder.mkdir(parents=True, exist_ok=True)
source = {"content": "c0ffee" * 8, "files": {"a": [10, "x"], "b": [5, "y"]}}
sections = {"seed": 3, "sft": {"optimizer": {"muon_lr": 0.005, "betas": [0.9, 0.95]}}}
metrics = Metrics(folder, "tiny", "sft", "identity-of-it", sections, {"curate": source})
for step in range(25):
    metrics.log(step, {"train/loss": 3.0 / (step + 1), "optim/lr": float("inf") if step == 3 else 0.1})
(folder / "trajectories.jsonl").write_text(os.environ.get("KEPT", ""))
print("logged", flush=True)
if sys.argv[1] == "wait":
    time.sleep(3000)
elif sys.argv[1] == "fail":
    metrics.close(failed="documents/0.parquet is cut off")
else:
    final = artifacts.artifact_dir("tiny", "sft")
    final.mkdir(parents=True)
    (final / "record.json").write_text(json.dumps({"stage": "sft"}))
    metrics.finish({"git_commit": "abc123", "metrics": {"val/bpb": 1.5}})
"""


@pytest.fixture
def run_stage(tmp_path):
    def start(how: str, **more: str) -> subprocess.Popen:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW")}
        environment |= {
            "GLM5_ROOT": str(tmp_path), "GLM5_MLFLOW": "on", "GLM5_MLFLOW_PARENT": "full-pipeline it's-a-run",
            "PYTHONPATH": str(ROOT), **more,
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-c", STAGE, how],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def ended_runs(folder: Path, count: int):
    """Client, parent run and the nested runs, when ``count`` of these have ended."""

    def look():
        if not (folder / "runs" / ".mlflow.lock").exists() or not (folder / "runs/mlflow.db").exists():
            return None
        with open(folder / "runs" / ".mlflow.lock") as lock:  # never while the database is being made
            fcntl.flock(lock, fcntl.LOCK_EX)
            client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
            experiment = client.get_experiment_by_name("glm5 tiny")
        if experiment is None:
            return None
        try:
            runs = client.search_runs([experiment.experiment_id])
        except MlflowException:  # the database is busy with the child's writing
            return None
        nested = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        done = len(nested) == count and all(run.info.status != "RUNNING" for run in runs)
        return (client, parents, nested) if done else None

    return wait_until(look, "the end of the runs", pause=1.0)


KEPT = {
    "step": 0, "id": "r", "group": "g", "task": "t", "environment": "tools", "family": "calc", "mode": "off",
    "segments": [], "reward": None, "reason": "its environment failed", "messages": [], "seconds": 1.0,
}  # fmt: skip


def test_a_finished_stage(tmp_path, run_stage):
    assert run_stage("finish", KEPT=json.dumps(KEPT) + '\n{"step": 1}\n').wait(PATIENCE) == 0
    client, [parent], [run] = ended_runs(tmp_path, 1)
    assert parent.info.run_name == "full-pipeline it's-a-run" and parent.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (run.info.run_name, run.info.status) == ("sft", "FINISHED")
    assert run.data.params == {
        "seed": "3",
        "sft.optimizer.muon_lr": "0.005",
        "sft.optimizer.betas": "[0.9, 0.95]",
    }
    curve = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((point.step, point.value) for point in curve) == [(s, 3.0 / (s + 1)) for s in range(25)]
    assert len(client.get_metric_history(run.info.run_id, "optim/lr")) == 24  # the infinite one is left out
    assert run.data.metrics["val/bpb"] == 1.5
    [dataset] = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("curate", ("c0ffee" * 8)[:32])
    assert json.loads(dataset.dataset.profile) == {"bytes": 15, "files": 2}
    tags = run.data.tags
    assert (tags["identity"], tags["recipe"], tags["stage"]) == ("identity-of-it", "tiny", "sft")
    assert tags["input.curate"] == "c0ffee" * 8 and tags["mlflow.source.git.commit"] == "abc123"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["record.json"]
    assert (tmp_path / "runs/mlartifacts").is_dir() and not (tmp_path / "mlruns").exists()
    # The kept rollout is a trace of the run; the broken line behind it costs nothing but its own trace.
    log = tmp_path / "runs/tiny/sft/mlflow.log"
    wait_until(lambda: "KeyError" in log.read_text(), "what the child says of the broken line")
    [trace] = client.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id)
    assert (trace.info.tags["family"], trace.info.state) == ("tools/calc", "ERROR")


def test_a_failed_and_a_killed_stage_of_one_pipeline_run(tmp_path, run_stage):
    failed, killed = run_stage("fail"), None
    assert failed.wait(PATIENCE) == 0
    ended_runs(tmp_path, 1)
    killed = run_stage("wait")
    assert killed.stdout.readline() == "logged\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    _, [parent], nested = ended_runs(tmp_path, 2)
    assert parent.info.status == "FAILED"
    by_status = {run.info.status: run for run in nested}
    assert by_status.keys() == {"FAILED", "KILLED"}
    assert by_status["FAILED"].data.tags["error"] == "documents/0.parquet is cut off"
    assert by_status["KILLED"].data.metrics["train/loss"] == pytest.approx(0.12)


def test_a_store_that_cannot_be_reached_stops_nothing(tmp_path, run_stage):
    blocked = tmp_path / "runs"
    blocked.mkdir()
    (blocked / "mlflow.db").mkdir()  # no database can be made there
    with open(blocked / ".mlflow.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the child waits for it, the stage must not wait for the child
        assert run_stage("finish").wait(PATIENCE) == 0
    assert len((tmp_path / "runs/tiny/sft/metrics.jsonl").read_text().splitlines()) == 25
    log = tmp_path / "runs/tiny/sft/mlflow.log"
    wait_until(lambda: "unable to open database file" in log.read_text(), "what the child says")
    for process in writers(tmp_path):  # the forked one would try for an hour
        process.kill()


def writers(folder: Path) -> list[psutil.Process]:
    """The writer of the runs in ``folder`` and the processes that it forked."""
    found = psutil.process_iter(["cmdline"])
    return [p for p in found if any(f"{folder}/runs/.mlflow-" in word for word in p.info["cmdline"] or [])]


def test_stages_share_a_writer_and_outlive_one_that_was_killed(tmp_path, run_stage):
    assert run_stage("finish").wait(PATIENCE) == 0
    ended_runs(tmp_path, 1)
    [writer] = wait_until(lambda: len(found := writers(tmp_path)) == 1 and found, "the end of the fork")
    shutil.rmtree(tmp_path / "artifacts")
    assert run_stage("finish").wait(PATIENCE) == 0
    ended_runs(tmp_path, 2)
    assert writer in writers(tmp_path)  # it forked once more, and loaded MLflow once

    writer.kill()
    writer.wait(PATIENCE)
    shutil.rmtree(tmp_path / "artifacts")
    assert run_stage("finish").wait(PATIENCE) == 0
    ended_runs(tmp_path, 3)
    assert writer not in writers(tmp_path)


def test_a_writer_that_was_asked_does_not_retire(tmp_path):
    path = tmp_path / ".mlflow-0.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as stage:
        listener.bind(os.path.relpath(path))
        listener.listen()
        stage.connect(os.path.relpath(path))
        assert not mlflow_mirror._retired(path, listener) and path.exists()
        stage.close()
        assert mlflow_mirror._take(listener) == 0  # the stage ended before it had said anything
        assert mlflow_mirror._retired(path, listener) and not path.exists()


def test_a_socket_that_cannot_be_made_stops_nothing(tmp_path, run_stage):
    deep = tmp_path / "/".join(["a folder with a long name"] * 5)
    deep.mkdir(parents=True)
    stage = run_stage("finish", GLM5_ROOT=str(deep))
    said = stage.communicate(timeout=PATIENCE)[0]
    assert stage.returncode == 0 and "MLflow does not get this run (AF_UNIX path too long)" in said
    assert len((deep / "runs/tiny/sft/metrics.jsonl").read_text().splitlines()) == 25


def test_stages_that_start_together_start_one_writer(tmp_path, run_stage, monkeypatch):
    for name in [name for name in os.environ if name.startswith("MLFLOW")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    (tmp_path / "runs").mkdir()
    with mlflow_sink.handing_over(socket_path := mlflow_sink.writer_socket()):
        stages = [run_stage("fail") for _ in range(3)]
        number = socket_path.with_suffix(".lock").stat().st_ino

        def wait() -> bool:
            assert all(stage.poll() is None for stage in stages)
            locks = Path("/proc/locks").read_text().splitlines()
            return sum("->" in line and f":{number} " in line for line in locks) == len(stages)

        wait_until(wait, "stages that wait for one another")
    assert [stage.wait(PATIENCE) for stage in stages] == [0, 0, 0]
    ended_runs(tmp_path, 3)
    wait_until(lambda: len(writers(tmp_path)) == 1, "the end of the forks")
    assert len(list((tmp_path / "runs").glob(".mlflow-*.sock"))) == 1


def test_a_writer_is_asked_by_those_alone_who_tell_mlflow_the_same(monkeypatch):
    before = mlflow_sink.writer_socket()
    monkeypatch.setenv("GLM5_MLFLOW_PARENT", "another run")
    assert mlflow_sink.writer_socket() == before
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a new one")
    assert mlflow_sink.writer_socket() != before
