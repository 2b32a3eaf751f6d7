"""Agentic RL: agents with tools over several turns, fully asynchronous (paper sections 3.3 and 4.1).

    python -m tasks.agentic_rl --recipe tiny

Rollouts run ahead of the weights, so each token is weighed against the log-probability that its engine gave
it and masked where both differ too much. Advantages are rewards less their group's mean, the optimizer begins
anew after each push of weights. Tasks of tools come from rl_tasks, those of terminals and projects from
agent_tasks, questions over a corpus from search_tasks.
"""

import json
import sys
from pathlib import Path

from environments.harbor.environment import HarborTasks
from environments.interface import Task
from environments.sandbox.choose import open_backend
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.errors import UserError
from pipeline.recipe.rl import AgenticRlSection
from pipeline.stage import Context, run_stage
from tasks.rl.catalog import CatalogConfig, in_sandboxes, runs_programs
from tasks.rl.difficulty import Pair
from tasks.rl.groups import centred
from tasks.rl.losses.double_sided import DoubleSided
from tasks.rl.output import write_policy
from tasks.rl.selection import by_reward
from tasks.rl.setup import families_of, in_modes, read_tasks, services_of
from tasks.rl.trainer import RlJob, train_policy
from tasks.rl.worker import FIGURES, ServiceConfig
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model

HARBOR, SEARCH = "harbor", "search"  # services beside those of the families


def run(context: Context) -> dict[str, float]:
    """Train what reasoning RL left, on tasks that need tools."""
    section: AgenticRlSection = context.section
    start = context.inputs["reasoning_rl"]
    tasks = tasks_of(context)
    catalog = catalog_of(context, tasks)
    if catalog.sandbox:
        open_backend(section.backend)  # where there is none it is said now, not by a worker that dies
    services = _services(context, tasks)
    model, tokenizer = load_model(start, pick_device()), Tokenizer.load(start)
    values = train_policy(
        RlJob(
            context, model, start, tokenizer.ids_by_name[END_OF_TEXT], services,
            DoubleSided(section.eps_low, section.eps_high), by_reward(section, centred),
            reset_optimizer=True, catalog=catalog,
        )
    )  # fmt: skip
    context.facts |= _became(context.scratch / FIGURES)
    write_policy(context, model, start)
    return values


def catalog_of(context: Context, tasks: dict[str, list[Task]]) -> CatalogConfig:
    """What the worker must open for the tasks that the recipe gives weight."""
    section: AgenticRlSection = context.section
    python = runs_programs(tasks.get(SEARCH, ()))
    return CatalogConfig(
        corpus=context.inputs["search_tasks"] / "corpus" if section.search else None,
        agent_tasks=_harbor_root(context) if section.harbor else None,
        sandbox=bool(section.harbor) or python or in_sandboxes(families_of(section)),
        backend=section.backend,
    )


def tasks_of(context: Context) -> dict[str, list[Task]]:
    """Training tasks by service. Raises ``UserError`` where one with weight has none."""
    section: AgenticRlSection = context.section
    tasks = read_tasks(context.inputs["rl_tasks"] / "tasks.jsonl", families_of(section))
    if section.harbor:
        tasks[HARBOR] = HarborTasks(_harbor_root(context), name=HARBOR).tasks(heldout=False)
        if not tasks[HARBOR]:
            raise UserError(
                "agentic_rl.harbor has weight, but agent_tasks made no training task: set it to 0"
            )
    if section.search:
        with open(context.inputs["search_tasks"] / "tasks.jsonl", encoding="utf-8") as file:
            tasks[SEARCH] = [Task.from_record(json.loads(line)) for line in file]
        if not tasks[SEARCH]:
            raise UserError("agentic_rl.search has weight, but search_tasks made no task: set it to 0")
    return tasks


def _services(context: Context, tasks: dict[str, list[Task]]) -> list[ServiceConfig]:
    section: AgenticRlSection = context.section
    pairs: dict[str, list[Pair]] = {
        name: in_modes(found, section.modes, context.seed) for name, found in tasks.items()
    }
    weights = {**section.families, HARBOR: section.harbor, SEARCH: section.search}
    services = []
    for service in services_of(context, pairs, weights):
        changes = {"folding": section.folding}
        if in_sandboxes([service.name]) or runs_programs(task for task, _ in pairs[service.name]):
            changes["at_once"] = section.sandboxes
        services.append(service.model_copy(update=changes))
    return services


def _harbor_root(context: Context) -> Path:
    return context.inputs["agent_tasks"] / "tasks"


def _became(figures: Path) -> dict[str, float]:
    """Of each service its groups and its rollouts without a reward, and the tasks that were given up."""
    services = json.loads(figures.read_text())["services"] if figures.exists() else {}
    facts: dict[str, float] = {}
    for name, found in services.items():
        facts |= {f"rollouts/{name}/{key}": found.get(key, 0) for key in ("groups", "rollouts", "failed")}
        facts |= {f"failed/{task}": count for task, count in found["failed_by_task"].items()}
        if found["given_up"]:
            facts[f"given_up/{name}"] = len(found["given_up"])
            print(
                f"warning: given up, they were mostly not judged: {', '.join(found['given_up'])}",
                file=sys.stderr,
            )
    return facts


if __name__ == "__main__":
    run_stage("agentic_rl", run)
