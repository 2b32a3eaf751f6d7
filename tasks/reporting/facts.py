"""What the report is made of, and of nothing else: records, metrics, curves and scores of finished artifacts.

A file that is missing or unreadable is named in ``missing``; the page says so and leaves its part out.
"""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts import RECORD, read_record
from pipeline.graph import Stage
from pipeline.tracking import read_metrics
from tasks.training.curves import CURVES
from tasks.training.stages import CHECKPOINT_STAGES

Curve = list[tuple[float, float]]  # (step, value)


@dataclass
class StageFacts:
    """One stage: its record (None without a finished artifact), its numbers and its curves."""

    name: str
    description: str
    inputs: tuple[str, ...]
    record: dict[str, Any] | None
    metrics: dict[str, float]
    curves: dict[str, Curve]


@dataclass
class Facts:
    recipe: str
    stages: dict[str, StageFacts]
    folders: dict[str, Path]
    missing: list[str] = field(default_factory=list)

    def json(self, stage: str, name: str) -> Any:
        """Content of a JSON file of a stage's artifact, or None (and noted) where there is none."""
        return self._read(stage, name, lambda text: json.loads(text))

    def lines(self, stage: str, name: str) -> list[Any]:
        """Rows of a JSON-lines file; none where it is missing."""
        return self._read(stage, name, lambda text: [json.loads(line) for line in text.splitlines()]) or []

    def file(self, stage: str, name: str) -> Path | None:
        """A file of a stage's artifact, or None (and noted) where there is none."""
        if self.stages.get(stage) is None or self.stages[stage].record is None:
            return None  # the stage itself is already noted
        path = self.folders[stage] / name
        return path if path.is_file() else self._unreadable(stage, name)

    def _read(self, stage: str, name: str, parse: Callable[[str], Any]) -> Any:
        path = self.file(stage, name)
        try:
            return path and parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return self._unreadable(stage, name)

    def _unreadable(self, stage: str, name: str) -> None:
        sentence = f"{stage}/{name} cannot be read: what it would show is left out"
        if sentence not in self.missing:  # several parts may look for it
            self.missing.append(sentence)


def collect_facts(
    recipe: str, graph: dict[str, Stage], folders: dict[str, Path], runs: dict[str, Path]
) -> Facts:
    """Facts of the stages' artifact folders; curves that an artifact lacks are taken from its run folder."""
    facts = Facts(recipe, {}, folders)
    for name, folder in folders.items():
        record = read_record(folder)
        if record is None:
            facts.missing.append(f"{name} has no readable {RECORD}: run stage {name}")
        curves = _read_curves(folder / CURVES) or _curves_of_run(runs.get(name))
        if record is not None and name in CHECKPOINT_STAGES and not curves:
            facts.missing.append(f"{name}/{CURVES} cannot be read: its curves are left out")
        metrics = (record or {}).get("metrics", {})
        stage = graph[name]
        facts.stages[name] = StageFacts(name, stage.description, stage.inputs, record, metrics, curves)
    return facts


def _read_curves(path: Path) -> dict[str, Curve]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return _by_name((int(float(row.pop("step"))), row) for row in rows)
    except (OSError, ValueError, KeyError):
        return {}


def _curves_of_run(folder: Path | None) -> dict[str, Curve]:
    if folder is None:
        return {}
    return _by_name((row.pop("step"), row) for row in read_metrics(folder))


def _by_name(rows: Any) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for step, values in rows:
        for name, value in values.items():
            if value not in ("", None):
                curves.setdefault(name, []).append((step, float(value)))
    return curves
