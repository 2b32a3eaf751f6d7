"""Programs of this project that ``flows`` may not import: ``glm5 chat`` and ``glm5 serve`` hand over to the
model's own with a recipe's checkpoints, others are asked a question.
"""

import os
import subprocess
import sys
from pathlib import Path

from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.graph import load_graph
from pipeline.recipe import load_recipe


def checkpoints(recipe: str) -> dict[str, Path]:
    """Folders of a recipe's finished checkpoints by ``recipe/stage``, in the order of the graph.

    Raises ``UserError`` when there are none.
    """
    name = load_recipe(recipe).name
    folders = {f"{name}/{stage}": artifacts.artifact_dir(name, stage) for stage in load_graph()}
    found = {
        title: folder
        for title, folder in folders.items()
        if artifacts.read_record(folder) is not None and (folder / "config.json").exists()
    }
    if not found:
        raise UserError(
            f"recipe {recipe} has no finished checkpoint in {artifacts.root() / 'artifacts' / name}: "
            f"run `glm5 run --recipe {recipe}`"
        )
    return found


def hand_over(module: str, recipe: str, stage: str | None, arguments: list[str]) -> None:
    """Become ``python -m module`` with all checkpoints of the recipe; never returns.

    ``stage`` names the one to begin with, None the last of the graph. The process is replaced, so that keys
    and signals reach the program itself.
    """
    folders = checkpoints(recipe)
    first = list(folders)[-1]
    if stage is not None:
        first = next((title for title in folders if title.rpartition("/")[2] == stage), "")
        if not first:
            known = ", ".join(title.rpartition("/")[2] for title in folders)
            raise UserError(
                f"recipe {recipe} has no finished checkpoint of stage {stage!r}; there are {known}"
            )
    become(
        module, ["--first", first, *arguments, *(f"{title}={folder}" for title, folder in folders.items())]
    )


def become(module: str, arguments: list[str]) -> None:
    """Become ``python -m module arguments``; never returns."""
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], _environment())


def ask(module: str, question: str) -> subprocess.CompletedProcess:
    """``python -m module`` run to its end with ``question`` on its standard input, and what it printed."""
    command = [sys.executable, "-m", module]
    return subprocess.run(command, input=question, env=_environment(), capture_output=True, text=True)


def _environment() -> dict[str, str]:
    """In which this clone's modules are found."""
    paths = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
