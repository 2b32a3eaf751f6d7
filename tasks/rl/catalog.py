"""Which environments a rollout worker has: those of the catalog, with what their episodes run in and on."""

import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from environments.catalog import environments
from environments.interface import Environment, Task
from environments.sandbox.choose import open_backend

IN_SANDBOXES = frozenset({"harbor", "programs", "python_tool"})  # they run what a policy writes


class CatalogConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    corpus: Path | None = None  # of stage search_tasks
    agent_tasks: Path | None = None  # a folder of Harbor tasks
    sandbox: bool = False  # what a policy writes runs in one
    backend: Literal["bubblewrap", "docker"] | None = None  # of sandboxes; None: the best that works here
    more: list[str] = []  # classes of environments beyond the catalog's: "module:Class"


def open_catalog(config: CatalogConfig) -> dict[str, Environment]:
    """Environments by name. Raises ``UserError`` where a sandbox is wanted and none can be started."""
    backend = open_backend(config.backend) if config.sandbox else None
    catalog = environments(corpus=config.corpus, agent_tasks=config.agent_tasks, backend=backend)
    more = [pkgutil.resolve_name(name)() for name in config.more]
    return catalog | {environment.name: environment for environment in more}


def in_sandboxes(families: Iterable[str]) -> bool:
    """Whether any of ``environment/family`` runs what a policy writes."""
    return any(name.partition("/")[0] in IN_SANDBOXES for name in families)


def runs_programs(tasks: Iterable[Task]) -> bool:
    """Whether any offers a tool ``python``, as questions of search_tasks may."""
    return any(tool["function"]["name"] == "python" for task in tasks for tool in task.tools)
