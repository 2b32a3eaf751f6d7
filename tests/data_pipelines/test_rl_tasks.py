"""Tasks to train on: no prompt twice, unless what comes behind it is another."""

import json

import pytest

from data_pipelines.rl_tasks import distinct
from environments.catalog import environments, find_family
from environments.instructions.sentences import TOPICS

CATALOG = environments()
LEADS, CASES = ("on", "say on", "one on"), ("upper", "lower", "title")


def drawn(name: str, wanted: int) -> list:
    tasks = list(distinct(*find_family(CATALOG, name), wanted, 0))
    assert not any(task.heldout for task in tasks)
    return tasks


def texts(tasks) -> list[str]:
    return [json.dumps(task.messages) for task in tasks]


@pytest.mark.parametrize(
    "name", ["instructions/items", "safety/answer", "code/fix", "code/list", "mathematics/quadratic"]
)
def test_no_prompt_comes_twice(name):
    found = texts(drawn(name, 100))
    assert len(set(found)) == len(found) > 50


def test_a_family_of_few_prompts_gives_each_once():
    """The oracle's words, drawn anew each time, make no other task of a prompt."""
    found = [task.messages[0]["content"] for task in drawn("instructions/case", 200)]
    space = {f"{lead} {topic}, {case} case" for lead in LEADS for topic in TOPICS for case in CASES}
    assert set(found) <= space and 0.8 * len(space) < len(found) == len(set(found)) < 200


@pytest.mark.parametrize("name", ["lookup/fact", "dialogue/next"])
def test_one_prompt_is_several_tasks_where_more_comes_behind_it(name):
    tasks = drawn(name, 300)
    assert len(tasks) == 300 > len(set(texts(tasks)))
    assert len({json.dumps([task.messages, task.truth], sort_keys=True) for task in tasks}) == 300
