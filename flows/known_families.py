"""Environments and families that a recipe names and that there are not: refused before a stage runs."""

import json
from collections.abc import Container

from flows.talk import ask
from pipeline.errors import UserError
from pipeline.recipe import load_recipe

USED_BY = ("eval_sets", "sft_data", "rl_tasks")


def refuse_unknown_families(recipe: str, stages: Container[str] = USED_BY) -> None:
    """Raises ``UserError``. ``environments`` knows which there are, and is asked in a process of its own; not
    where none of ``stages`` uses them.
    """
    if not any(name in stages for name in USED_BY):
        return
    loaded = load_recipe(recipe)
    question = {
        "sft_data.families": list(loaded.sft_data.families),
        "rl_tasks.families": loaded.rl_tasks.families,
        "eval_sets.environments": loaded.eval_sets.environments,
    }
    done = ask("environments.known", json.dumps(question))
    if done.returncode:
        sentence = done.stderr.strip().rpartition("\n")[2]
        if not sentence.startswith("error: "):
            raise RuntimeError(f"the names of environments were not checked: {done.stderr}")
        raise UserError(f"recipe {recipe}: {sentence.removeprefix('error: ')}")
