"""What a stage shows in the Prefect UI: a progress bar while it runs, a table of results in the end."""

import contextlib
import time
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows.executors import Outcome
from pipeline import artifacts
from pipeline.progress import describe, read_progress

SECONDS_BETWEEN_UPDATES = 3.0


class ProgressArtifact:
    """Copies a stage's ``progress.json`` to a progress artifact."""

    def __init__(self, recipe: str, stage: str):
        self._folder = artifacts.run_dir(recipe, stage)
        self._key = _key(recipe, stage, "progress")
        self._id: UUID | None = None
        self._since = time.time()
        self._updated = 0.0

    def update(self) -> None:
        """Show where the stage is. Cheap enough to call often."""
        if time.monotonic() - self._updated < SECONDS_BETWEEN_UPDATES:
            return
        self._updated = time.monotonic()
        state = read_progress(self._folder)
        if state is not None and state["time"] >= self._since:
            share = 100.0 * state["done"] / state["total"] if state["total"] else 0.0
            self._show(min(share, 100.0), describe(state))

    def finish(self) -> None:
        """Show that the stage is done, also one that was too quick to be seen before."""
        self._show(100.0, "done")

    def _show(self, percent: float, description: str) -> None:
        # A server that is away for a moment must not end a stage that trains.
        with contextlib.suppress(Exception):
            if self._id is None:
                self._id = create_progress_artifact(percent, key=self._key, description=description)
            else:
                update_progress_artifact(self._id, percent, description=description)


def show_result(recipe: str, outcome: Outcome) -> None:
    """A table artifact: metrics, time and identity of a finished stage."""
    record = outcome.record
    state = "was up to date" if outcome.skipped else "ran"
    rows: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in record["metrics"].items()]
    rows += [
        {"name": "state", "value": state},
        {"name": "seconds", "value": round(record["seconds"], 1)},
        {"name": "peak memory, MiB", "value": record["peak_memory_bytes"] >> 20},
        {"name": "identity", "value": record["identity"]},
        {"name": "git commit", "value": record["git_commit"]},
    ]
    folder = artifacts.artifact_dir(recipe, outcome.stage).absolute()
    create_table_artifact(rows, key=_key(recipe, outcome.stage, "result"), description=f"In `{folder}`")


def show_report(recipe: str) -> None:
    """A markdown artifact: where the report card is, and the card itself."""
    folder = artifacts.artifact_dir(recipe, "report").absolute()
    pages = sorted(folder.glob("*.html"))
    text = "".join(f"Report: [{page}](file://{page})\n\n" for page in pages)
    text += "".join(page.read_text() for page in sorted(folder.glob("*.md")))
    if text:
        create_markdown_artifact(text, key=_key(recipe, "report"), description="The report card")


def _key(*parts: str) -> str:
    return "-".join(parts).replace("_", "-").lower()
