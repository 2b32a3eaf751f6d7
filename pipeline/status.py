"""Where each stage of a recipe stands, without running or hashing anything large."""

import fcntl
from dataclasses import dataclass
from typing import Literal

from pipeline import artifacts
from pipeline.graph import Stage
from pipeline.progress import describe, read_progress
from pipeline.recipe import Recipe
from pipeline.stage import identity_of

State = Literal["done", "stale", "running", "missing"]


@dataclass(frozen=True)
class Status:
    """State of one stage and, in ``reason``, why it is not done or what it is doing."""

    stage: str
    state: State
    reason: str
    record: dict | None  # of the artifact that is there, stale or not


def status_of(graph: dict[str, Stage], recipe: Recipe) -> list[Status]:
    """The state of every stage, in order. Payload files are compared by size, not by hash."""
    found: dict[str, Status] = {}
    for stage in graph.values():
        found[stage.name] = _status(stage, recipe, found)
    return list(found.values())


def is_running(recipe: str, stage: str) -> bool:
    """Whether a process holds the stage's lock."""
    path = artifacts.run_dir(recipe, stage) / "lock"
    if not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _status(stage: Stage, recipe: Recipe, found: dict[str, Status]) -> Status:
    folder = artifacts.artifact_dir(recipe.name, stage.name)
    record = artifacts.read_record(folder)
    if is_running(recipe.name, stage.name):
        progress = read_progress(artifacts.run_dir(recipe.name, stage.name))
        return Status(stage.name, "running", describe(progress) if progress else "starting", record)
    if record is None:
        waiting = [name for name in stage.inputs if found[name].record is None]
        reason = f"needs {', '.join(waiting)}" if waiting else "can run"
        return Status(stage.name, "missing", reason, None)
    reason = _damage(folder, record) or _difference(stage, recipe, record, found)
    return Status(stage.name, "stale" if reason else "done", reason, record)


def _damage(folder, record: dict) -> str:
    for name, (size, _) in record["files"].items():
        file = folder / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} was changed"
    return ""


def _difference(stage: Stage, recipe: Recipe, record: dict, found: dict[str, Status]) -> str:
    """Why the stage would now have another identity than its artifact; empty when it would not."""
    missing = [name for name in stage.inputs if found[name].record is None]
    if missing:
        return f"input {missing[0]} is missing"
    now = identity_of(stage, recipe, {name: found[name].record for name in stage.inputs})
    for kind, word in (
        ("sections", ""),
        ("inputs", "input "),
        ("code", "code "),
        ("surroundings", "source "),
    ):
        before, after = record.get(kind, {}), now.get(kind, {})
        changed = [key for key in {**after, **before} if after.get(key) != before.get(key)]
        if kind == "sections":
            changed = [path for key in changed for path in _changes(before.get(key), after.get(key), key)]
        if changed:
            return f"{word}{', '.join(changed)} changed"
    stale = [name for name in stage.inputs if found[name].state in ("stale", "running")]
    return f"input {stale[0]} is {found[stale[0]].state}" if stale else ""


def _changes(before: object, after: object, path: str) -> list[str]:
    """``section.key old -> new`` for every value that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        return [text for key in keys for text in _changes(before.get(key), after.get(key), f"{path}.{key}")]
    return [f"{path} {before} -> {after}"]
