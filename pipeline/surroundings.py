"""What ``collect`` reads outside the repository: its folders, the installed packages, the interpreter.

It is part of the stage's identity, so that a rerun sees that one of them changed. DVC cannot watch them: what
starts DVC has to ask ``changed`` first (``flows.executors`` does).
"""

import platform
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline import artifacts
from pipeline.graph import Stage
from pipeline.recipe import Recipe
from pipeline.recipe.data import Source

SECTION = "collect"


def surroundings(stage: Stage, recipe: Recipe) -> dict[str, str]:
    """A digest for each source by name; empty for stages that read artifacts alone."""
    if SECTION not in stage.sections:
        return {}
    return {source.name: artifacts.digest_of(list(_entries(source))) for source in recipe.collect.sources}


def changed(stage: Stage, recipe: Recipe) -> bool:
    """Whether the stage has a finished artifact that was made in other surroundings."""
    record = artifacts.read_record(artifacts.artifact_dir(recipe.name, stage.name))
    return record is not None and record.get("surroundings", {}) != surroundings(stage, recipe)


def _entries(source: Source) -> Iterator[list]:
    """What decides the documents of a source beside its entry in the recipe; a wheel is pinned there."""
    if source.kind == "folder":
        yield from _files(Path(source.path).expanduser())
    elif source.kind == "python_packages":
        yield ["python", platform.python_version()]
        yield from _packages(source.packages)


def _packages(wanted: list[str] | None) -> Iterator[list]:
    """Name and version of the named distributions; of all that are installed when none is named."""
    names = None if wanted is None else {_normal(name) for name in wanted}
    found = {_normal(item.metadata["Name"]): item.version for item in _distributions(names)}
    for name, version in sorted(found.items()):
        if names is None or name in names:
            yield [name, version]


def _distributions(names: set[str] | None) -> Iterator[metadata.Distribution]:
    if names is None:
        yield from (item for item in metadata.distributions() if item.metadata["Name"])
        return
    for name in names:
        yield from metadata.distributions(name=name)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _files(root: Path) -> Iterator[list]:
    """Name, size and SHA-256 of each file below ``root``, hidden ones left out."""
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        name = path.relative_to(root)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            state = path.stat()
            yield [name.as_posix(), state.st_size, _hash(path, state.st_size, state.st_mtime_ns)]


@cache
def _hash(path: Path, size: int, changed_ns: int) -> str:
    """Once a process for each state of a file. One that cannot be read is left out by ``collect``."""
    try:
        return artifacts.hash_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
