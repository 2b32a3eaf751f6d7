"""One problem of mathematics: what is asked, how it is worked out, and the answer to compare with."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

# number: one rational number. exact: one real number with radicals, pi, e or logarithms. expression: a
# term in the variable x. set: numbers in any order. tuple: numbers in this order. interval: a set of reals.
Kind = Literal["number", "exact", "expression", "set", "tuple", "interval"]


@dataclass(frozen=True)
class Problem:
    prompt: str
    steps: str
    answer: str  # LaTeX, without a box
    difficulty: int  # steps that a careful solver writes
    kind: Kind = "number"
    unit: str = ""  # may follow the answer or be left out


Draw = Callable[[random.Random], Problem]


def latex(value: Fraction | int) -> str:
    r"""``latex(Fraction(-1, 2))`` is ``-\frac{1}{2}``."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def polynomial(coefficients: list[int], variable: str = "x") -> str:
    """``polynomial([1, 0, -3])`` is ``x^2 - 3``: coefficients from the highest power down, not all zero."""
    terms = []
    for power, factor in zip(range(len(coefficients) - 1, -1, -1), coefficients, strict=True):
        if factor == 0:
            continue
        letters = "" if power == 0 else variable if power == 1 else f"{variable}^{{{power}}}" if power > 9 \
            else f"{variable}^{power}"  # fmt: skip
        size = str(abs(factor)) if abs(factor) != 1 or not letters else ""
        terms.append(("-" if factor < 0 else "+", size + letters))
    (sign, first), *rest = terms
    return ("-" if sign == "-" else "") + first + "".join(f" {sign} {term}" for sign, term in rest)


def radical(square: int) -> tuple[int, int]:
    """``radical(72)`` is ``(6, 2)``: the root of 72 is 6 times the root of 2."""
    outside, factor = 1, 2
    while factor * factor <= square:
        while square % (factor * factor) == 0:
            square //= factor * factor
            outside *= factor
        factor += 1
    return outside, square


def root(square: int, times: int = 1) -> str:
    r"""``root(72)`` is ``6\sqrt{2}``; ``times`` multiplies it."""
    outside, inside = radical(square)
    outside *= times
    if inside == 1:
        return str(outside)
    return (str(outside) if outside != 1 else "") + rf"\sqrt{{{inside}}}"


def nonzero(rng: random.Random, size: int) -> int:
    """A whole number from -size to size that is not 0."""
    return rng.choice((-1, 1)) * rng.randint(1, size)
