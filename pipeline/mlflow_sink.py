"""A stage's run in MLflow, written by another process: the stage neither waits for MLflow nor fails with it.

That process (``pipeline.mlflow_mirror``) follows ``metrics.jsonl``. It is told the end through its standard
input; when that closes without a word the stage was killed, and the run says so. Loading MLflow takes as long
as a short stage, so one *writer* of a folder of runs does it once and forks for each stage: a stage hands it
the reading end of a pipe and its log through a socket, and starts it where none answers. It has its own
process group and goes on for a moment after the last stage has ended.
"""

import importlib.util
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TextIO

from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.files import locked

PARENT = "GLM5_MLFLOW_PARENT"  # name of the pipeline run that a stage belongs to
SWITCH = "GLM5_MLFLOW"  # "off" for no MLflow
DESCRIPTION = "mlflow.json"
LOG = "mlflow.log"
SQLITE = "sqlite:///"
SECONDS_FOR_LOCK = 30.0


def tracking_uri() -> str:
    """``MLFLOW_TRACKING_URI``, else a SQLite file in ``runs/``; never MLflow's own default."""
    default = f"sqlite:///{(artifacts.root() / 'runs' / 'mlflow.db').absolute()}"
    return os.environ.get("MLFLOW_TRACKING_URI") or default


def require_store() -> None:
    """Raise ``UserError`` where the tracking URI is a file of SQLite that cannot be used."""
    uri = tracking_uri()
    try:
        open_sqlite(uri)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"MLflow cannot use {uri.removeprefix(SQLITE)} ({reason}): mend that, or set GLM5_ROOT to "
            "another folder or MLFLOW_TRACKING_URI to another store"
        ) from None


def open_sqlite(uri: str) -> None:
    """Open the file of SQLite that ``uri`` may name, as MLflow itself tries it for a minute before it says
    what is wrong. Raises ``OSError`` or ``sqlite3.Error``.
    """
    if uri.startswith(SQLITE):
        path = Path(uri.removeprefix(SQLITE))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):  # a transaction has files beside it
            pass
        with closing(sqlite3.connect(path, timeout=SECONDS_FOR_LOCK)) as database:
            database.execute("BEGIN IMMEDIATE")


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
    """The stage's end of the pipe. Without MLflow, or switched off, it does nothing."""

    def __init__(self, pipe: TextIO | None, folder: Path):
        self._pipe = pipe
        self._folder = folder

    @classmethod
    def open(
        cls, recipe: str, stage: str, identity: str, sections: dict, inputs: dict[str, dict]
    ) -> "MlflowSink":
        """Hand the run over. ``sections`` become parameters, ``inputs`` (records by stage) datasets."""
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
        try:
            return cls(_hand_over(folder), folder)
        except OSError as error:
            print(f"MLflow does not get this run ({error}); nothing else is lost", file=sys.stderr)
            return cls(None, folder)

    def finish(self, record: dict) -> None:
        """The stage ended well and ``record`` is in its artifact."""
        self._say({"status": "FINISHED", "commit": record["git_commit"], "metrics": record["metrics"]})

    def fail(self, reason: str) -> None:
        self._say({"status": "FAILED", "reason": reason})

    def _say(self, end: dict) -> None:
        if self._pipe is None:
            return
        try:
            with self._pipe:
                self._pipe.write(json.dumps(end) + "\n")
        except BrokenPipeError:
            print(
                f"MLflow did not take this run (see {self._folder / LOG}); nothing else is lost",
                file=sys.stderr,
            )
        except (OSError, ValueError):  # told before
            pass


def writer_socket() -> Path:
    """Where the writer of these runs listens: one for each Python and what MLflow is told, a password too."""
    told = {key: value for key, value in {**os.environ, **settings()}.items() if key.startswith("MLFLOW_")}
    key = artifacts.digest_of([sys.executable, told])[:8]
    return artifacts.root() / "runs" / f".mlflow-{key}.sock"


def handing_over(path: Path) -> AbstractContextManager[None]:
    """Held by who connects to a writer, starts one or ends as one: a run is never handed to one that ends."""
    return locked(path.with_suffix(".lock"))


def _hand_over(folder: Path) -> TextIO:
    """The writing end of a pipe to the process that writes the run that ``folder`` describes."""
    path = writer_socket()
    reading, writing = os.pipe()
    pipe = os.fdopen(writing, "w")
    try:
        (folder / LOG).write_text("")  # emptied and added to: an earlier writer may have something to say yet
        with open(folder / LOG, "a") as log, handing_over(path), _connected(path, log) as connection:
            name = str((folder / DESCRIPTION).absolute()).encode()
            socket.send_fds(connection, [name], [reading, log.fileno()])
    except OSError:
        pipe.close()
        raise
    finally:
        os.close(reading)
    return pipe


def _connected(path: Path, log: TextIO) -> socket.socket:
    """A connection to the writer, which is started where none listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_address(path))
    except (FileNotFoundError, ConnectionRefusedError):
        path.unlink(missing_ok=True)  # of one that was killed
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_address(path))
            listener.listen()
            subprocess.Popen(
                [sys.executable, "-m", "pipeline.mlflow_mirror", str(path), str(listener.fileno())],
                env={**os.environ, **settings()}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, pass_fds=[listener.fileno()],
            )  # fmt: skip
        connection.connect(_address(path))  # it waits there until MLflow is loaded
    return connection


def _address(path: Path) -> str:
    """The shorter spelling: the name of a socket may have about a hundred characters."""
    return min(str(path.absolute()), os.path.relpath(path), key=len)


def _dataset(recipe: str, stage: str, record: dict) -> dict:
    folder = artifacts.artifact_dir(recipe, stage).absolute()
    size = sum(size for size, _ in record["files"].values())
    return {"digest": record["content"], "source": str(folder), "bytes": size, "files": len(record["files"])}
