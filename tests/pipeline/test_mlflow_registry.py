"""A release in a real MLflow store: version, alias, files; the same again; a store that is away."""

import errno
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.mlflow_registry import find, register
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


TEXT = "# Another card\n\nwith a line\n\n---\n\nand more.\n"
ANOTHER = f"---\nlibrary_name: transformers\ntags:\n- sparse-attention\n---\n\n{TEXT}"


def publish(root: Path, stage: str, files: dict[str, str], **more) -> dict:
    draft, final = root / f"draft-{stage}", root / "artifacts/tiny" / stage
    draft.mkdir()
    for name, text in files.items():
        (draft / name).write_text(text)
    final.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "stage": stage,
        "identity": f"identity of {stage}",
        "git_commit": "abc123",
        "facts": {},
        "metrics": {},
    }
    return artifacts.publish(draft, final, {**record, **more})


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A recipe with two checkpoints, an evaluation and a report."""
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    publish(tmp_path, "sft", {"config.json": "{}", "model.safetensors": "old"})
    made = publish(tmp_path, "quantize", {"config.json": "{}", "model.safetensors": "weights"})
    publish(
        tmp_path, "evaluate", {"scores.json": "{}"}, metrics={"eval/quantize/bpb": 1.5, "eval/sft/bpb": 2.0}
    )
    report(tmp_path, made["content"])
    return tmp_path


def report(root: Path, content: str, card: str = "# A card\n") -> None:
    publish(root, "report", {"model_card.md": card}, facts={"released": "quantize", "content": content})


def released() -> tuple[str, bool]:
    return register(find("tiny"))


def test_a_release_is_a_version_with_files_card_and_alias(root, tmp_path, monkeypatch):
    uri = f"sqlite:///{root}/runs/mlflow.db"
    assert released() == ("1", True) and released() == ("1", False)
    report(root, artifacts.read_record(root / "artifacts/tiny/quantize")["content"], ANOTHER)
    assert released() == ("2", True)

    client = MlflowClient(uri, uri)
    version = client.get_model_version_by_alias("glm5-tiny", "released")
    assert (str(version.version), version.description) == ("2", TEXT)
    assert version.tags["content"] == artifacts.read_record(root / "artifacts/tiny/quantize")["content"]
    run = client.get_run(version.run_id)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"eval/quantize/bpb": 1.5})
    got = mlflow.artifacts.download_artifacts(
        client.get_model_version_download_uri("glm5-tiny", version.version), dst_path=str(tmp_path / "got"),
        tracking_uri=uri,
    )  # fmt: skip
    assert {path.name for path in Path(got).iterdir()} == {
        "README.md", "config.json", "model.safetensors", "record.json",
    }  # fmt: skip
    assert (Path(got) / "model.safetensors").read_text() == "weights"
    assert (Path(got) / "README.md").read_text() == ANOTHER
    assert json.loads((Path(got) / "record.json").read_text())["identity"] == "identity of quantize"
    assert not (root / "artifacts/tiny/quantize/README.md").exists()  # the artifact stays as it was made


def test_a_database_half_made_or_a_full_disk_cost_nothing(root, monkeypatch):
    runs = root / "runs"
    runs.mkdir()
    with closing(sqlite3.connect(runs / ".mlflow.db.draft")) as database:  # as a kill in its making leaves it
        database.execute("CREATE TABLE jobs (id INTEGER)")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifacts", full)
        with pytest.raises(UserError, match="the disk is full while stage release writes"):
            released()
    assert released() == ("1", True)
    assert not list(runs.glob(".mlflow.db.draft*"))


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_command_says_what_cannot_be_released(root):
    publish(root, "quantize", {"config.json": "{}", "model.safetensors": "other weights"})
    command = [sys.executable, "-m", "flows.cli", "release", "--recipe", "tiny"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "was written of another" in done.stderr and "run stage report again" in done.stderr


def test_there_must_be_a_report_of_a_checkpoint(root):
    publish(root, "report", {"model_card.md": "# A card\n"})
    with pytest.raises(UserError, match="is about no checkpoint: run stage report again once one is trained"):
        find("tiny")
    (root / "artifacts/tiny/report/record.json").unlink()
    with pytest.raises(UserError, match="report is not finished"):
        find("tiny")


@pytest.mark.parametrize("uri", ["sqlite:////dev/null/mlflow.db", "http://127.0.0.1:9"])
def test_a_store_that_is_away_costs_a_sentence(root, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(
        UserError, match=f"MLflow at {uri} did not take the release .*set MLFLOW_TRACKING_URI"
    ):
        released()
