"""Stage ``rl_tasks``: verifiable tasks for reinforcement learning, as many of each family.

    python -m data_pipelines.rl_tasks --recipe tiny

``tasks.jsonl`` holds a task a line, none of which is held out, no two of a family with one prompt, except
where other things come to light behind it (``SHOWN_LATER``). Families of few prompts give fewer. Which of
them a policy learns from is decided by the stage that trains it.
"""

import json
from collections.abc import Iterator

from data_pipelines.documents import python_texts
from environments.catalog import environments, find_family
from environments.interface import Environment, Task
from environments.known import refuse_unknown
from pipeline.errors import UserError
from pipeline.recipe.rl import RlTasksSection
from pipeline.stage import Context, run_stage

DRAWS = 20  # for each task wanted, at most
SEEDS_APART = 10_000_000  # between two data seeds
# What of ``Task.truth`` an attempt may come to see behind the prompt, so that one prompt is several tasks:
# what a search finds, what a user says next. Tests of code and the oracle's own words make no other task.
SHOWN_LATER = ("facts", "follow_ups", "database", "wishes")
FIRST_SEED = 5_000_000_000  # beyond those of sft_data, whose chats are other draws


def run(context: Context) -> dict[str, float]:
    """Draw and write the tasks of the recipe."""
    section: RlTasksSection = context.section
    catalog = environments(python_texts(context.inputs["curate"] / "documents"))
    refuse_unknown(catalog, "rl_tasks.families", section.families)
    counts: dict[str, int] = {}
    with open(context.out / "tasks.jsonl", "w") as file:
        for done, name in enumerate(section.families):
            environment, family = find_family(catalog, name)
            found = list(distinct(environment, family, section.tasks_per_family, context.recipe.data_seed))
            if not found:
                raise UserError(f"{name} gave no task: leave it out of rl_tasks.families")
            file.writelines(json.dumps(task.to_record(), ensure_ascii=False) + "\n" for task in found)
            counts[name] = len(found)
            context.progress.update("tasks", done + 1, len(section.families), "families", name)
    (context.out / "manifest.json").write_text(json.dumps(counts, indent=2) + "\n")
    return {"tasks/total": sum(counts.values()), "tasks/families": len(counts)}


def distinct(environment: Environment, family: str, wanted: int, data_seed: int) -> Iterator[Task]:
    """Training tasks that differ in prompt or ``SHOWN_LATER``; fewer than ``wanted`` if there are no more."""
    seen: set[str] = set()
    first = FIRST_SEED + data_seed * SEEDS_APART
    for seed in range(first, first + DRAWS * wanted):
        if len(seen) == wanted:
            return
        task = environment.make_task(family, seed)
        later = {name: task.truth[name] for name in SHOWN_LATER if name in task.truth}
        key = json.dumps([task.messages, later], sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield task


if __name__ == "__main__":
    run_stage("rl_tasks", run)
