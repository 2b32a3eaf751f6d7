"""Held-out tasks: no two of a family have the same prompt, and a small family gives all that it has."""

from functools import cache

import pytest

from data_pipelines.eval_sets import distinct_tasks
from environments.catalog import environments, family_names, find_family, select
from environments.interface import Task, is_heldout
from environments.keys import KEYS
from pipeline.recipe import load_recipe

NAMES = [f"handler_{number}" for number in range(300)]
EVERYTHING = environments(["\n".join(f"def {name}(item, size): pass" for name in NAMES)])
CATALOG = select(EVERYTHING, load_recipe("tiny").eval_sets.environments)
WANTED = 40
SPACES = {
    "lookup/fact": [f"find {key}" for key in KEYS],
    "lookup/two": [f"find {key}" for key in KEYS],
    "lookup/hop": [f"end {key}" for key in KEYS],
    "lookup/code": [f"args of {name}" for name in NAMES],
}
DRAWS = 500  # of a family: all its prompts are among them, where they are few
FEW = ("instructions/case", "instructions/edges", "instructions/items")


def asked(task: Task) -> str:
    """What a model sees: the system's message, where there is one, and the user's."""
    return "\n".join(message["content"] for message in task.messages)


def space(name: str) -> set[str]:
    """Every prompt of a small family that is held out."""
    environment, family = find_family(CATALOG, name)
    drawn = (environment.make_task(family, seed, heldout=True) for seed in range(DRAWS))
    texts = SPACES[name] if name in SPACES else map(asked, drawn)
    return {text for text in texts if is_heldout([{"content": text}])}


@cache
def prompts(name: str) -> list[str]:
    tasks = distinct_tasks(*find_family(CATALOG, name), WANTED)
    assert all(task.heldout for task in tasks)
    return [asked(task) for task in tasks]


@pytest.mark.parametrize("name", family_names(CATALOG) + family_names(CATALOG, evaluation_only=True))
def test_prompts_are_distinct(name):
    found = prompts(name)
    assert len(set(found)) == len(found)
    assert len(found) == WANTED or name in (*SPACES, *FEW)


@pytest.mark.parametrize("name", (*SPACES, *FEW))
def test_a_small_family_gives_every_prompt_that_it_may(name):
    found, may = prompts(name), space(name)
    assert set(found) <= may and len(found) == min(WANTED, len(may))
