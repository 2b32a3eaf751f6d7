"""Scripted policies prove what each suite measures: the oracle 1, nothing 0, form alone little."""

import random

import pytest

from data_pipelines.eval_sets import distinct_tasks
from environments.catalog import environments, select
from environments.long_context import TASKS, make_item
from environments.ruler import tasks as ruler
from evals.attempts import Item
from evals.bits_per_byte import BitsPerByte
from evals.documents import Document
from evals.environments import Environments
from evals.long_context import LongContext, LongContextItem
from evals.ruler import Ruler, RulerQuestion
from evals.scripted import SCRIPTS, Answers, Scripted, copied, first_parameter
from pipeline.recipe import load_recipe
from tests.ruler_material import LINES, MATERIAL

FAMILIES = select(environments(), load_recipe("tiny").eval_sets.environments)


def table(suite, answers: Answers) -> dict[str, dict[str, float]]:
    return {
        script: {score.name: score.value for score in suite.run(Scripted(script, answers)).scores}
        for script in SCRIPTS
    }


def test_environments():
    items = [
        Item(task, "off")
        for environment in FAMILIES.values()
        for family in (*environment.families, *environment.evaluation_only)
        for task in distinct_tasks(environment, family, 3)
    ]
    answers = Answers()
    answers.add_tasks(items)
    found = table(Environments(items, 1), answers)
    assert found["oracle"]["exact/off"] == found["oracle"]["exact/unseen/off"] == 1.0
    assert found["nop"]["exact/off"] == found["nop"]["exact/unseen/off"] == 0.0
    assert found["random"]["exact/off"] < 0.3 and found["heuristic"]["exact/off"] < 0.2


def test_long_context_and_ruler():
    answers, short = Answers(), []
    for task in TASKS:
        for number in range(4):
            item = make_item(task, random.Random(f"{task}{number}"), LINES, len, 400, heldout=True)
            short.append(LongContextItem(f"{task}/{number}", task, 400, item.prompt, item.answers))
    long = []
    for task in ruler.TASKS:
        for number in range(4):
            item = ruler.make_item(task, random.Random(f"{task}{number}"), MATERIAL, len, 1200)
            long.append(RulerQuestion(f"{task}/{number}", task, 1200, item.prompt, item.answers, item.match))
    answers.add_long([*short, *long])
    for suite in (LongContext(short, 16), Ruler(long, 64)):
        found = table(suite, answers)
        assert set(found["oracle"].values()) == {1.0} and set(found["nop"].values()) == {0.0}
        assert found["random"]["dense/all"] < 0.2
        # Copying finds one needle whose key it is given, and no word count.
        assert found["random"]["dense/all"] < found["heuristic"]["dense/all"] < 0.7
    assert found["heuristic"]["dense/niah_single_1"] == 1.0 and found["heuristic"]["dense/fwe"] < 0.5


def test_bits_per_byte():
    suite = BitsPerByte([Document("a", "one", "é" * 20), Document("b", "two", "plain")], 32)
    found = table(suite, Answers())
    assert found["oracle"]["all"] == 0.0
    assert found["nop"]["all"] == found["random"]["all"] == pytest.approx(8.0)


def test_what_the_heuristics_do():
    assert copied("k4=739\nk5=120\nk4=") == "739"
    assert copied("abc") == ""
    assert first_parameter("import re\n\ndef f(first, second):\n    '''Text.'''\n") == "    return first\n"
    assert first_parameter("def f():\n    '''Text.'''\n") == "    pass\n"
