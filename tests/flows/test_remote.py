"""Artifacts go to a DVC remote and come back from it whole."""

import shutil
import subprocess
import sys
from pathlib import Path

from pipeline import artifacts
from tests.waiting import PATIENCE


def dvc(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_artifacts_are_pushed_and_pulled(finished, environment, tmp_path):
    made = finished / "artifacts/tiny"
    records = {folder.name: artifacts.verify(folder) for folder in made.iterdir()}
    dvc(finished, environment, "remote", "add", "--default", "storage", str(tmp_path / "remote"))
    said = dvc(finished, environment, "push", "sft@tiny", "report@tiny")
    assert "files pushed" in said and any((tmp_path / "remote").rglob("*.dir"))
    # Another clone has dvc.lock from git and no artifacts.
    shutil.rmtree(made)
    shutil.rmtree(finished / ".dvc/cache")
    dvc(finished, environment, "pull", "sft@tiny", "report@tiny")
    assert {folder.name for folder in made.iterdir()} == {"sft", "report"}
    assert {name: artifacts.verify(made / name) for name in ("sft", "report")} == {
        name: records[name] for name in ("sft", "report")
    }  # fmt: skip
