"""Questions over passages: one passage answers (as SQuAD's do), or one leads to the other (as HotpotQA's)."""

import random
from collections.abc import Iterable

from environments.ruler.item import Frame, Measure
from environments.ruler.material import Function, Material

HEAD = "Answer from these functions."


def one_passage(
    rng: random.Random, material: Material, measure: Measure, target: int
) -> tuple[Frame, Iterable[str]]:
    asked = rng.choice(material.functions)
    question = f"What are the parameters of {asked.name}? They are ("
    return _frame(question, asked, [asked]), _others(rng, material, {asked.name})


def two_passages(
    rng: random.Random, material: Material, measure: Measure, target: int
) -> tuple[Frame, Iterable[str]]:
    by_name = {function.name: function for function in material.functions}
    caller = rng.choice(material.callers())
    called = by_name[caller.calls]
    question = f"What are the parameters of the function that {caller.name} calls? They are ("
    return _frame(question, called, [caller, called]), _others(rng, material, {caller.name, called.name})


def _frame(question: str, answer: Function, shown: list[Function]) -> Frame:
    passages = tuple(function.excerpt for function in shown)
    completion = f"{answer.parameters})"
    return Frame(HEAD, question, completion, (answer.parameters,), passages, match="part", joint="\n\n")


def _others(rng: random.Random, material: Material, shown: set[str]) -> Iterable[str]:
    functions = rng.sample(material.functions, len(material.functions))
    return (function.excerpt for function in functions if function.name not in shown)
