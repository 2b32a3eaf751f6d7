"""One question of science and the form of its answer."""

from dataclasses import dataclass
from typing import Literal

# quantity: a number with a unit. list: whole numbers in order. unit: a unit in SI base units. words: symbols
# in order, separated by commas.
Kind = Literal["quantity", "list", "unit", "words"]


@dataclass(frozen=True)
class ScienceProblem:
    prompt: str
    steps: str
    answer: float | str
    difficulty: int
    kind: Kind = "quantity"
    unit: str = ""
    figures: int = 3
