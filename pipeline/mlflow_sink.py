"""A stage's run in MLflow, written by a child process: the stage neither waits for MLflow nor fails with it.

The child (``pipeline.mlflow_mirror``) follows ``metrics.jsonl``. It is told the end through its standard
input; when that closes without a word the stage was killed, and the run says so. It has its own process group
and goes on for a moment after the stage has ended.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from pipeline import artifacts

PARENT = "GLM5_MLFLOW_PARENT"  # name of the pipeline run that a stage belongs to
SWITCH = "GLM5_MLFLOW"  # "off" for no MLflow
DESCRIPTION = "mlflow.json"
LOG = "mlflow.log"
SQLITE = "sqlite:///"


def tracking_uri() -> str:
    """``MLFLOW_TRACKING_URI``, else a SQLite file in ``runs/``; never MLflow's own default."""
    default = f"sqlite:///{(artifacts.root() / 'runs' / 'mlflow.db').absolute()}"
    return os.environ.get("MLFLOW_TRACKING_URI") or default


def settings() -> dict[str, str]:
    """Environment of every process of MLflow: nothing is sent out, a server that is away is given up soon."""
    return {
        "MLFLOW_TRACKING_URI": tracking_uri(),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",  # the child itself waits for nobody
    }


class MlflowSink:
    """The stage's end of the pipe to the child. Without MLflow, or switched off, it does nothing."""

    def __init__(self, child: subprocess.Popen | None, folder: Path):
        self._child = child
        self._folder = folder

    @classmethod
    def open(
        cls, recipe: str, stage: str, identity: str, sections: dict, inputs: dict[str, dict]
    ) -> "MlflowSink":
        """Start the child. ``sections`` become parameters, ``inputs`` (records by stage) datasets."""
        folder = artifacts.run_dir(recipe, stage)
        if os.environ.get(SWITCH) == "off" or importlib.util.find_spec("mlflow") is None:
            return cls(None, folder)
        description = {
            "recipe": recipe, "stage": stage, "identity": identity, "sections": sections,
            "inputs": {name: _dataset(recipe, name, record) for name, record in inputs.items()},
            "folder": str(folder.absolute()), "runs": str((artifacts.root() / "runs").absolute()),
            "artifact": str(artifacts.artifact_dir(recipe, stage).absolute()),
            "pipeline_run": os.environ.get(PARENT) or f"{stage} alone",
        }  # fmt: skip
        (folder / DESCRIPTION).write_text(json.dumps(description))
        with open(folder / LOG, "w") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "pipeline.mlflow_mirror", str(folder / DESCRIPTION)],
                env={**os.environ, **settings()}, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        return cls(child, folder)

    def finish(self, record: dict) -> None:
        """The stage ended well and ``record`` is in its artifact."""
        self._say({"status": "FINISHED", "commit": record["git_commit"], "metrics": record["metrics"]})

    def fail(self, reason: str) -> None:
        self._say({"status": "FAILED", "reason": reason})

    def _say(self, end: dict) -> None:
        if self._child is None:
            return
        if self._child.poll() is not None:
            print(
                f"MLflow did not take this run (see {self._folder / LOG}); nothing else is lost",
                file=sys.stderr,
            )
        with contextlib.suppress(OSError, ValueError):
            self._child.stdin.write(json.dumps(end) + "\n")
            self._child.stdin.close()


def _dataset(recipe: str, stage: str, record: dict) -> dict:
    folder = artifacts.artifact_dir(recipe, stage).absolute()
    size = sum(size for size, _ in record["files"].values())
    return {"digest": record["content"], "source": str(folder), "bytes": size, "files": len(record["files"])}
