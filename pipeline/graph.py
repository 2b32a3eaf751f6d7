"""The graph of stages, read from ``dvc.yaml``: the only place where it is written down.

A stage there is a ``foreach`` over the active recipes. Its dependencies under ``artifacts/`` are other
stages, its other dependencies are code, and its ``params`` name the recipe sections that it may read.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError
from pipeline.files import parse_yaml


@dataclass(frozen=True)
class Stage:
    """One node of the graph."""

    name: str
    module: str  # run as ``python -m <module> --recipe <recipe>``
    inputs: tuple[str, ...]  # stages whose artifacts it reads
    code: tuple[str, ...]  # code paths that its identity holds (data stages only)
    sections: tuple[str, ...]  # recipe sections it may read
    description: str
    accelerator: bool = False  # trains or samples a model: one such stage at a time on a machine


def load_graph(path: Path | str = "dvc.yaml") -> dict[str, Stage]:
    """All stages by name, each after its inputs. Raises ``UserError`` when the file is missing or wrong."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} is not here: run this from the root of the repository")
    entries = parse_yaml(path.read_text())["stages"]
    stages = {name: _read_stage(name, entry) for name, entry in entries.items()}
    return _in_order(stages)


def ancestors(graph: dict[str, Stage], name: str) -> set[str]:
    """Every stage that ``name`` needs, directly or not, without itself."""
    found: set[str] = set()
    waiting = list(graph[name].inputs)
    while waiting:
        stage = waiting.pop()
        if stage not in found:
            found.add(stage)
            waiting += graph[stage].inputs
    return found


def descendants(graph: dict[str, Stage], name: str) -> set[str]:
    """Every stage that needs ``name``, directly or not, without itself."""
    return {other for other in graph if name in ancestors(graph, other)}


def select(graph: dict[str, Stage], start: str | None, only: Collection[str]) -> list[str]:
    """Stages to run, in order: all, or ``start`` with all that follows from it, or exactly ``only``.

    Raises ``UserError`` for a name that is no stage, and where both ways of choosing are used at once.
    """
    if start and only:
        raise UserError(
            f"stages to run alone ({', '.join(only)}) and a stage to start from ({start}) are two ways of "
            "choosing: give one of them"
        )
    for name in [*only, *([start] if start else [])]:
        if name not in graph:
            raise UserError(f"there is no stage {name!r} in dvc.yaml (stages: {', '.join(graph)})")
    if only:
        wanted = set(only)
    else:
        wanted = set(graph) if start is None else {start} | descendants(graph, start)
    return [name for name in graph if name in wanted]


def _read_stage(name: str, entry: dict) -> Stage:
    body = entry["do"]
    module = re.search(r"-m\s+([\w.]+)", body["cmd"])
    if module is None:
        raise UserError(f"dvc.yaml: the command of stage {name} does not run a module with `python -m`")
    inputs, code = [], []
    for dependency in body.get("deps", []):
        artifact = re.fullmatch(r"artifacts/\$\{key\}/(\w+)", dependency)
        if artifact:
            inputs.append(artifact.group(1))
        else:
            code.append(dependency)
    sections: dict[str, None] = {}
    for params in body.get("params", []):
        for keys in params.values():
            sections.update(dict.fromkeys(keys))
    return Stage(
        name, module.group(1), tuple(inputs), tuple(code), tuple(sections), body.get("desc", ""),
        accelerator=body.get("meta", {}).get("accelerator", False),
    )  # fmt: skip


def _in_order(stages: dict[str, Stage]) -> dict[str, Stage]:
    ordered: dict[str, Stage] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            raise UserError(
                f"dvc.yaml: stages depend on each other in a circle: {' -> '.join(trail + (name,))}"
            )
        if name not in stages:
            raise UserError(f"dvc.yaml: stage {trail[-1]} reads the artifact of {name}, which is no stage")
        if name not in ordered:
            for source in stages[name].inputs:
                visit(source, trail + (name,))
            ordered[name] = stages[name]

    for name in stages:
        visit(name, ())
    return ordered
