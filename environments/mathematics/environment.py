"""Mathematics from parametrised problems whose answers are computed exactly, checked by Math-Verify.

A plain number is read and compared exactly here; everything with radicals, logarithms, variables or sets
of reals goes to Math-Verify in a process of its own. Only the final answer counts, and it has to be worked
out: a term that repeats the question (an integral sign, a power instead of its value) is no answer.
"""

import random
import re
from typing import Any

from environments.episode import OneMessageEpisode, answer
from environments.interface import Draft, Environment, Episode, Message, Mode, Task, Verdict
from environments.mathematics import (
    algebra,
    calculus,
    counting,
    geometry,
    number_theory,
    probability,
    stories,
)
from environments.mathematics.checker import CheckerError, checker
from environments.mathematics.problem import Draw
from environments.mathematics.reading import final_answer, read_number, read_numbers

REQUEST = r"Put the final answer in \boxed{}."

# What an answer may be made of, apart from digits and signs; the question's own operators are not there.
_COMMANDS = {
    "frac",
    "sqrt",
    "pi",
    "sin",
    "cos",
    "tan",
    "ln",
    "log",
    "exp",
    "cdot",
    "times",
    "infty",
    "cup",
    "le",
    "ge",
    "leq",
    "geq",
    "text",
    "pm",
}
_PLAIN = {
    "sqrt": r"\\sqrt",
    "pi": r"\\pi",
    "ln": r"\\ln",
    "log": r"\\log",
    "sin": r"\\sin",
    "cos": r"\\cos",
    "tan": r"\\tan",
    "exp": r"\\exp",
    "inf": r"\\infty",
    "infinity": r"\\infty",
    "U": r"\\cup",
}
_LONG_DECIMAL = re.compile(r"\.\d{4,}")  # a rounded value is not the exact one
# Powers of powers and long numbers are in no answer, and would only keep the checker busy until it is ended.
_GIANT = re.compile(r"\d{16}|\^\s*\{?\s*-?\d{4}|\^\s*(?:\{[^{}]*|\w\s*)\^|[({\[]{8}|\^\{[^{}]*[({]")


class MathematicsEpisode(OneMessageEpisode):
    """``truth`` holds ``answer``, ``kind`` and ``unit``."""

    def read(self, content: Any) -> str | None:
        return final_answer(content)

    async def judge(self, said: str) -> Verdict:
        truth = {name: self.task.truth[name] for name in ("answer", "kind", "unit")}
        try:
            same = await is_equal(said, **truth)
        except CheckerError as error:
            return Verdict(None, str(error))
        if same is None:
            return Verdict(0.0, "the answer could not be compared in time")
        return Verdict(float(same), "right" if same else "the answer is wrong")


async def is_equal(said: str, answer: str, kind: str, unit: str = "") -> bool | None:
    """Whether a tidied final answer is the right one; None where that cannot be decided in bounded time.

    Raises ``CheckerError`` when Math-Verify cannot be asked, or the right answer cannot be read.
    """
    if kind == "number":
        return read_number(said, unit) == _readable(read_number(answer), answer)
    if kind in ("set", "tuple") and "sqrt" not in answer:
        ordered = kind == "tuple"
        values, right = read_numbers(said, ordered), _readable(read_numbers(answer, ordered), answer)
        return values == right if ordered else values is not None and sorted(values) == sorted(right)
    if said.replace(" ", "") == answer.replace(" ", ""):
        return True  # saves SymPy a tenth of a second
    readable = _as_latex(said, kind)
    return False if readable is None else await checker().equal(answer, readable)


def _readable(value, answer: str):
    """The value of the right answer: one that cannot be read would be equal to everything unreadable."""
    if value is None:
        raise CheckerError(f"the right answer cannot be read: {answer}")
    return value


def _as_latex(said: str, kind: str) -> str | None:
    """The answer as LaTeX for Math-Verify, None where it holds what an answer of this kind cannot hold."""
    text = re.sub(r"(?<![\\a-zA-Z])([a-zA-Z]{2,8}|U)(?![a-zA-Z])", lambda m: _plain(m[1]), said)
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text).replace("**", "^").replace("*", r"\cdot ")
    if kind == "exact":
        text = re.sub(r"^[a-zA-Z]\s*=\s*", "", text)
    if kind == "expression":
        text = re.sub(r"^(?:[a-zA-Z]|[a-zA-Z]'?\(x\)|\\frac\{dy?\}\{dx\})\s*=\s*", "", text)
    if (
        set(re.findall(r"\\([a-zA-Z]+)", text)) - _COMMANDS
        or _LONG_DECIMAL.search(text)
        or _GIANT.search(text)
    ):
        return None
    rest = re.sub(r"\\[a-zA-Z]+", " ", text)
    letters = set(re.findall(r"[^\W\d_]", re.sub(r"\bor\b|\band\b", " ", rest)))
    allowed = {"exact": {"e"}, "expression": {"e", "x"}, "interval": {"x"}, "set": {"x"}}[kind]
    if letters - allowed or re.search(r"[^\w\s\\{}()\[\]+\-*/^.,=<>;±|]|_", text):
        return None
    return text


def _plain(word: str) -> str:
    return _PLAIN[word].replace("\\\\", "\\") if word in _PLAIN else word


DRAWS: dict[str, Draw] = {
    **algebra.FAMILIES,
    **number_theory.FAMILIES,
    **counting.FAMILIES,
    **probability.FAMILIES,
    **calculus.FAMILIES,
    **geometry.FAMILIES,
    **stories.FAMILIES,
}
UNSEEN = ("remainders", "derangements", "bayes", "polygon")


class Mathematics(Environment):
    name = "mathematics"
    families = tuple(name for name in DRAWS if name not in UNSEEN)
    evaluation_only = UNSEEN

    def draw(self, family: str, rng: random.Random) -> Draft:
        problem = DRAWS[family](rng)
        truth = {"answer": problem.answer, "kind": problem.kind, "unit": problem.unit, "steps": problem.steps}
        prompt = {"role": "user", "content": f"{problem.prompt} {REQUEST}"}
        return Draft((prompt,), truth, problem.difficulty)

    def episode(self) -> Episode:
        return MathematicsEpisode()

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        truth = task.truth
        return [answer(None if mode == "off" else truth["steps"], rf"\boxed{{{truth['answer']}}}")]
