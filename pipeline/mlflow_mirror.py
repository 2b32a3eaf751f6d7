"""The writer of runs to MLflow: ``python -m pipeline.mlflow_mirror <socket> <its open file>``.

See ``pipeline.mlflow_sink``, which starts it. It forks for each stage that is handed over, and ends when
there was none for a while. A pipeline run is a parent run with a nested run for each stage that did work; the
parent is made by the first of them and is running as long as one of them is.
"""

import contextlib
import importlib
import json
import os
import re
import select
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

from pipeline.artifacts import RECORD
from pipeline.files import locked
from pipeline.mlflow_sink import SQLITE, handing_over, tracking_uri
from pipeline.mlflow_traces import log_traces
from pipeline.priority import give_way
from pipeline.tracking import FILE as METRICS_FILE
from pipeline.tracking import TRAJECTORIES

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_IDLE = 60.0  # longer than between two stages of a pipeline run
BATCH = 500  # values in one request
LONGEST_PARAM = 6000
LONGEST_PATH = 4096
NICENESS = 10  # the stage comes first
PIPELINE_RUN = "glm5.pipeline_run"


def main() -> None:
    """Fork for each run that comes through the socket, until none came for a while and all are written."""
    give_way(NICENESS)
    if tracking_uri().startswith(SQLITE):  # as MLflow does with its first request, in each fork
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
    path, listener = Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    writing, heard = 0, time.monotonic()
    while writing or time.monotonic() - heard < SECONDS_IDLE or not _retired(path, listener):
        if _waits(listener, SECONDS_BETWEEN_LOOKS):
            writing += _take(listener)
            heard = time.monotonic()
        while writing and os.waitpid(-1, os.WNOHANG)[0]:
            writing, heard = writing - 1, time.monotonic()


def _waits(listener: socket.socket, seconds: float) -> bool:
    return bool(select.select([listener], [], [], seconds)[0])


def _retired(path: Path, listener: socket.socket) -> bool:
    """Whether nobody can hand anything over any more: no run waits, and the socket has lost its name."""
    with handing_over(path):
        if _waits(listener, 0.0):
            return False
        path.unlink(missing_ok=True)
        return True


def _take(listener: socket.socket) -> int:
    """How many runs were taken over: one, in a process of its own, or none where the stage ended early."""
    connection, _ = listener.accept()
    with connection:
        message, files, _, _ = socket.recv_fds(connection, LONGEST_PATH, 2)
    if len(files) == 2 and os.fork() == 0:
        listener.close()
        for number, standard in ((files[0], 0), (files[1], 1), (files[1], 2)):
            os.dup2(number, standard)
        for number in files:
            os.close(number)
        _mirror_and_exit(Path(message.decode()))
    for number in files:
        os.close(number)
    return int(len(files) == 2)


def _mirror_and_exit(description: Path) -> NoReturn:
    """The whole of a forked process: nothing of the writer's own is run or flushed at its end."""
    status = 1
    try:
        mirror(json.loads(description.read_text()))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def mirror(description: dict) -> None:
    """Write the stage of ``description`` until standard input says that it ended, or closes."""
    with one_at_a_time(description):
        make_database()
        client = MlflowClient(tracking_uri=tracking_uri())  # upgrades an older database
        experiment = experiment_of(client, description)
        parent = _parent(client, experiment, description)
    run = _Run(client, experiment, parent, description)
    end = None
    while end is None:
        run.copy_new_metrics()
        end = _heard(SECONDS_BETWEEN_LOOKS)
    run.copy_new_metrics()
    run.end(end)
    with one_at_a_time(description):
        _close_parent(client, experiment, parent)
    try:  # last, as a run without its traces is still a run
        log_traces(client, experiment, run.id, Path(description["folder"]) / TRAJECTORIES)
    except Exception:
        traceback.print_exc()


class _Run:
    """The nested run of one stage."""

    def __init__(self, client: MlflowClient, experiment: str, parent: str, description: dict):
        self._client = client
        self._description = description
        self._file = Path(description["folder"]) / METRICS_FILE
        self._offset = 0
        self._step = -1
        tags = {
            "mlflow.parentRunId": parent,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": description["stage"],
            "stage": description["stage"],
            "recipe": description["recipe"],
            "identity": description["identity"],
            **{f"input.{name}": data["digest"] for name, data in description["inputs"].items()},
        }
        run = client.create_run(experiment, tags=tags, run_name=description["stage"])
        self.id = run.info.run_id
        params = [Param(key, value[:LONGEST_PARAM]) for key, value in _flat(description["sections"])]
        for start in range(0, len(params), 100):
            client.log_batch(self.id, params=params[start : start + 100])
        if description["inputs"]:
            client.log_inputs(self.id, datasets=[_input(*item) for item in description["inputs"].items()])

    def copy_new_metrics(self) -> None:
        """Log the lines that ``metrics.jsonl`` gained. One that shrank was rewound: its tail comes again."""
        if not self._file.exists():
            return
        if self._file.stat().st_size < self._offset:
            self._offset = 0
        with open(self._file) as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind("\n") + 1]
        self._offset += len(complete.encode())
        rows = [json.loads(line) for line in complete.splitlines()]
        now = int(time.time() * 1000)
        metrics = [
            Metric(_name(key), value, now, row["step"])
            for row in rows if row["step"] > self._step
            for key, value in row.items() if key != "step" and value is not None
        ]  # fmt: skip
        self._step = max([self._step, *(row["step"] for row in rows)])
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self.id, metrics=metrics[start : start + BATCH])

    def end(self, end: dict) -> None:
        """Close the run as the stage said, or as killed when it said nothing."""
        status = end["status"]
        if status == "FINISHED":
            now = int(time.time() * 1000)
            results = [
                Metric(_name(key), value, now, max(self._step, 0)) for key, value in end["metrics"].items()
            ]
            commit = [RunTag("mlflow.source.git.commit", end["commit"])] if end["commit"] else []
            self._client.log_batch(self.id, metrics=results, tags=commit)
            self._client.log_artifact(self.id, str(Path(self._description["artifact"]) / RECORD))
        elif status == "FAILED":
            self._client.set_tag(self.id, "error", end["reason"][:LONGEST_PARAM])
        self._client.set_terminated(self.id, status)


def _heard(seconds: float) -> dict | None:
    """What the stage said about its end within ``seconds``; ``KILLED`` if the pipe closed without a word."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return None
    line = sys.stdin.readline()
    return json.loads(line) if line.endswith("\n") else {"status": "KILLED"}


@contextlib.contextmanager
def one_at_a_time(description: dict) -> Iterator[None]:
    """Stages that start together must not make the database or the parent run twice."""
    folder = Path(description["runs"])
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".mlflow.lock"):
        yield


def make_database() -> None:
    """Make the SQLite database where there is none: whole or not at all, as MLflow cannot go on with one
    whose making was killed. One at a time.
    """
    uri = tracking_uri()
    if not uri.startswith(SQLITE):
        return
    path = Path(uri.removeprefix(SQLITE))
    if path.exists() and path.stat().st_size:
        return
    draft = path.with_name(f".{path.name}.draft")
    for left in path.parent.glob(f"{draft.name}*"):  # by one that was killed, with its journal
        left.unlink()
    MlflowClient(tracking_uri=f"{SQLITE}{draft}").search_experiments(max_results=1)
    draft.replace(path)


def experiment_of(client: MlflowClient, description: dict) -> str:
    name = f"glm5 {description['recipe']}"
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    local = tracking_uri().startswith("sqlite:")
    place = (Path(description["runs"]) / "mlartifacts").as_uri() if local else None
    return client.create_experiment(name, artifact_location=place)


def _parent(client: MlflowClient, experiment: str, description: dict) -> str:
    name = description["pipeline_run"]
    quoted = name.replace("'", "")
    found = client.search_runs([experiment], f"tags.`{PIPELINE_RUN}` = '{quoted}'", max_results=1)
    if found:
        client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id
    tags = {PIPELINE_RUN: quoted, "recipe": description["recipe"]}
    return client.create_run(experiment, tags=tags, run_name=name).info.run_id


def _close_parent(client: MlflowClient, experiment: str, parent: str) -> None:
    """End the parent run when no stage below it runs."""
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'")
    states = {child.info.status for child in children}
    if "RUNNING" not in states:
        client.set_terminated(parent, "FINISHED" if states == {"FINISHED"} else "FAILED")


def _input(name: str, data: dict) -> DatasetInput:
    source = json.dumps({"uri": Path(data["source"]).as_uri()})
    profile = json.dumps({"bytes": data["bytes"], "files": data["files"]})
    dataset = Dataset(name, data["digest"][:32], "local", source, profile=profile)
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", "input")])


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield _name(prefix), value if isinstance(value, str) else json.dumps(value)


def _name(text: str) -> str:
    """Names that MLflow takes: letters, digits, and ``_-./ :``."""
    return re.sub(r"[^\w\-./ :]", "_", text)


if __name__ == "__main__":
    main()
