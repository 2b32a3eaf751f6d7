"""All environments by name."""

from collections.abc import Iterable
from pathlib import Path

from environments.arithmetic import Arithmetic
from environments.code import Code
from environments.dialogue import Dialogue
from environments.graph import Graph
from environments.harbor.environment import HarborTasks
from environments.instructions.environment import Instructions
from environments.interface import Environment
from environments.lookup import Lookup
from environments.mathematics.environment import Mathematics
from environments.programs.environment import Programs
from environments.python_tool import PythonTool
from environments.safety import Safety
from environments.sandbox.interface import Backend
from environments.science.environment import Science
from environments.service.environment import Service
from environments.slides.environment import Slides
from environments.strings import Strings
from environments.table import Table
from environments.tools import Tools
from pipeline.errors import UserError


def environments(
    documents: Iterable[str] = (),
    corpus: Path | None = None,
    agent_tasks: Path | None = None,
    backend: Backend | None = None,
) -> dict[str, Environment]:
    """Every environment by name.

    ``documents`` are Python sources for look-ups in real code; without them that family of ``lookup`` is left
    out, and a stored task needs none to be run and verified. ``corpus`` is a folder of stage search_tasks, to
    search in. ``agent_tasks`` is a folder of Harbor tasks, such as that of stage agent_tasks: environment
    "harbor". ``backend`` runs what a policy writes; without one ``programs`` and ``python_tool`` use a
    limited child process, which a hostile program can leave, and ``search`` makes tasks without a tool
    ``python``.
    """
    made = [
        Arithmetic(), Strings(), Table(), Graph(), Code(), Tools(), Lookup(documents), Dialogue(),
        Mathematics(), Science(), Programs(backend), PythonTool(backend), Service(), Instructions(), Safety(),
        Slides(),
    ]  # fmt: skip
    if corpus is not None:
        from environments.search.environment import Search  # its index takes long to import
        from environments.search.python_sandbox import python_sandboxes

        made.append(Search(corpus, start_sandbox=python_sandboxes(backend) if backend else None))
    if agent_tasks is not None:
        made.append(HarborTasks(agent_tasks, backend, name="harbor"))
    return {environment.name: environment for environment in made}


def select(catalog: dict[str, Environment], names: Iterable[str]) -> dict[str, Environment]:
    """The named part of a catalog, in the catalog's order. Raises ``UserError`` for an unknown name."""
    wanted = set(names)
    unknown = sorted(wanted - set(catalog))
    if unknown:
        raise UserError(f"there is no environment {unknown[0]!r} (known: {', '.join(catalog)})")
    return {name: environment for name, environment in catalog.items() if name in wanted}


def family_names(catalog: dict[str, Environment], evaluation_only: bool = False) -> list[str]:
    """``environment/family`` of all trained families, or of those kept for evaluation."""
    names = []
    for environment in catalog.values():
        families = environment.evaluation_only if evaluation_only else environment.families
        names += [f"{environment.name}/{family}" for family in families]
    return names


def find_family(catalog: dict[str, Environment], name: str) -> tuple[Environment, str]:
    """``environment/family`` as environment and family. Raises ``UserError`` for an unknown environment."""
    environment, _, family = name.partition("/")
    if environment not in catalog:
        raise UserError(f"there is no environment {environment!r} in {name!r} (known: {', '.join(catalog)})")
    return catalog[environment], family
