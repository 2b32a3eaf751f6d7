"""Science with answers that can be computed: quantities with units, reactions, nuclides, orders.

A number may be given in any unit of the right kind; it has to agree up to one unit of the last asked
significant figure. Only the final answer counts.
"""

import random
import re
from typing import Any

from environments.episode import OneMessageEpisode, answer
from environments.interface import Draft, Environment, Episode, Message, Mode, Task, Verdict
from environments.mathematics.reading import final_answer, read_numbers
from environments.science import chemistry, formulas, units
from environments.science.problem import ScienceProblem
from environments.science.quantities import agrees, read_quantity, read_unit, rounded

DRAWS = {**formulas.FAMILIES, **units.FAMILIES, **chemistry.FAMILIES}
UNSEEN = ("optics", "solutions")


class ScienceEpisode(OneMessageEpisode):
    """``truth`` holds ``answer``, ``kind``, ``unit`` and ``figures``."""

    def read(self, content: Any) -> str | None:
        return final_answer(content)

    async def judge(self, said: str) -> Verdict:
        right = is_right(said, self.task.truth)
        return Verdict(float(right), "right" if right else "the answer is wrong")


def is_right(said: str, truth: dict) -> bool:
    """Whether a tidied final answer is the right one."""
    if truth["kind"] == "quantity":
        value = read_quantity(said, truth["unit"])
        return value is not None and agrees(value, truth["answer"], truth["figures"])
    if truth["kind"] == "list":
        numbers = read_numbers(said, ordered=True)
        return numbers is not None and numbers == read_numbers(truth["answer"], ordered=True)
    if truth["kind"] == "unit":
        unit = read_unit(said)
        return unit is not None and unit == read_unit(truth["answer"])
    plain = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", said)
    return re.split(r"\s*(?:,|<)\s*", plain.strip()) == truth["answer"].split(", ")


class Science(Environment):
    name = "science"
    provenance = "generated, with data of mendeleev 1.3.0"
    licence = "Apache-2.0 AND MIT"
    families = tuple(name for name in DRAWS if name not in UNSEEN)
    evaluation_only = UNSEEN

    def draw(self, family: str, rng: random.Random) -> Draft:
        problem: ScienceProblem = DRAWS[family](rng)
        figures = f" Give {problem.figures} significant figures." if problem.kind == "quantity" else ""
        content = rf"{problem.prompt}{figures} Put the final answer in \boxed{{}}."
        truth = {
            "answer": problem.answer,
            "kind": problem.kind,
            "unit": problem.unit,
            "figures": problem.figures,
            "steps": problem.steps,
        }
        return Draft(({"role": "user", "content": content},), truth, problem.difficulty)

    def episode(self) -> Episode:
        return ScienceEpisode()

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        truth = task.truth
        text = truth["answer"]
        if truth["kind"] == "quantity":
            unit = rf" \text{{ {truth['unit']}}}" if truth["unit"] else ""
            text = rounded(truth["answer"], truth["figures"]) + unit
        return [answer(None if mode == "off" else truth["steps"], rf"\boxed{{{text}}}")]
