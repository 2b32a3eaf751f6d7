"""RULER's 13 tasks by their names there, and how an item of each is made."""

import random

from environments.ruler.counting import common_words, frequent_words
from environments.ruler.item import Make, Measure, RulerItem, fill
from environments.ruler.material import Material
from environments.ruler.needles import multi_key, multi_query, multi_value, single
from environments.ruler.questions import one_passage, two_passages
from environments.ruler.tracking import variable_tracking
from pipeline.errors import UserError

TASKS: dict[str, Make] = {
    "niah_single_1": single("noise", "number"),
    "niah_single_2": single("text", "number"),
    "niah_single_3": single("text", "uuid"),
    "niah_multikey_1": multi_key("text", "words", "number"),
    "niah_multikey_2": multi_key("needles", "words", "number"),
    "niah_multikey_3": multi_key("needles", "uuid", "uuid"),
    "niah_multivalue": multi_value(),
    "niah_multiquery": multi_query(),
    "vt": variable_tracking,
    "cwe": common_words,
    "fwe": frequent_words,
    "qa_1": one_passage,
    "qa_2": two_passages,
}
HOPS = {"qa_1": 1, "qa_2": 2}


def tasks_of(material: Material) -> list[str]:
    """The tasks that the material is enough for: questions take Python functions."""
    return [task for task in TASKS if task not in HOPS or material.can_ask(HOPS[task])]


def make_item(task: str, rng: random.Random, material: Material, measure: Measure, target: int) -> RulerItem:
    """An item of at most ``target`` by ``measure`` (say, tokens), completion included.

    Raises ``UserError`` for an unknown task, for one that the material is not enough for, and for a target
    too small.
    """
    if task not in TASKS:
        raise UserError(f"there is no RULER task {task!r} (known: {', '.join(TASKS)})")
    if task not in tasks_of(material):
        raise UserError(
            f"{task} asks about Python functions, and the held-out documents have too few of them"
        )
    frame, filler = TASKS[task](rng, material, measure, target)
    return fill(task, frame, filler, rng, measure, target)
