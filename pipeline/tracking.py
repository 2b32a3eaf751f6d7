"""Metrics of a run: ``metrics.jsonl`` always; MLflow beside it when it is installed, and never fatal."""

import json
import math
from pathlib import Path
from typing import Any

from pipeline.files import write_whole
from pipeline.mlflow_sink import MlflowSink

FILE = "metrics.jsonl"
TRAJECTORIES = "trajectories.jsonl"  # what a stage of reinforcement learning keeps of its rollouts
STEP_TIMES = "steps.jsonl"  # and when they, its updates and its pushes of weights were


class Metrics:
    """Appends ``{"step": n, "train/loss": x, ...}`` lines to ``metrics.jsonl``; MLflow mirrors them."""

    def __init__(
        self, folder: Path, recipe: str, stage: str, identity: str, sections: dict, inputs: dict[str, dict]
    ):
        self.path = folder / FILE
        self._sink = MlflowSink.open(recipe, stage, identity, sections, inputs)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record values at a step; one that is not finite is written as null, so that the file stays JSON."""
        finite = {key: value if abs(value) < float("inf") else None for key, value in values.items()}
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")

    def rewind(self, step: int) -> None:
        """Forget lines after ``step``: a resumed run writes them again."""
        keep_steps_before(step + 1, self.path)

    def finish(self, record: dict) -> None:
        """Close the run as finished, with its result and its record."""
        self._sink.finish(record)

    def close(self, failed: str) -> None:
        """Close the run as failed, with the reason."""
        self._sink.fail(failed)


def keep_steps_before(step: int, path: Path) -> None:
    """Leave the lines of earlier steps in a file of JSON lines; one that was cut off or damaged goes, too."""
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n") and _step(line) < step]
        write_whole(path, "".join(whole))


def _step(line: str) -> float:
    """Infinity for a line that says none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, LookupError, TypeError):
        return math.inf


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines that a stage wrote in its run folder; a last line cut by a kill is left out."""
    path = folder / FILE
    rows = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows
