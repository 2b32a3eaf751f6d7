"""Sums, differences and products, worked out column by column from the right.

Every step has one form, ``7+3+0=10``: two digits, the carry that came in, then the carry that goes out
and the digit of the result. A difference borrows in the same form: ``3-7-0=16`` takes one from the next
column and leaves 6.
"""

import random

from environments.question import Question, QuestionEnvironment


def _number(rng: random.Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1), 10**digits)


def add_steps(left: int, right: int) -> str:
    """``add_steps(47, 23)`` is ``7+3+0=10,4+2+1=07``."""
    width = max(len(str(left)), len(str(right)))
    steps, carry = [], 0
    for a, b in zip(reversed(f"{left:0{width}}"), reversed(f"{right:0{width}}"), strict=True):
        total = int(a) + int(b) + carry
        steps.append(f"{a}+{b}+{carry}={total:02}")
        carry = total // 10
    return ",".join(steps)


def _subtract_steps(left: int, right: int) -> str:
    width = len(str(left))
    steps, borrow = [], 0
    for a, b in zip(reversed(str(left)), reversed(f"{right:0{width}}"), strict=True):
        rest = int(a) - int(b) - borrow
        steps.append(f"{a}-{b}-{borrow}={int(rest < 0)}{rest % 10}")
        borrow = int(rest < 0)
    return ",".join(steps)


def _add(digits: int):
    def draw(rng: random.Random) -> Question:
        a, b = _number(rng, digits), _number(rng, digits)
        return Question(f"{a}+{b}=", add_steps(a, b), str(a + b), digits)

    return draw


def _subtract(rng: random.Random) -> Question:
    a, b = sorted((_number(rng, 2), _number(rng, 2)), reverse=True)
    return Question(f"{a}-{b}=", _subtract_steps(a, b), str(a - b), 2)


def _multiply(rng: random.Random) -> Question:
    a, b = _number(rng, 2), rng.randrange(2, 10)
    ones, tens = a % 10 * b, a // 10 * b
    steps = f"{a % 10}*{b}={ones:02},{a // 10}*{b}={tens:02},{tens}+{ones // 10}={tens + ones // 10}"
    return Question(f"{a}*{b}=", steps, str(a * b), 3)


class Arithmetic(QuestionEnvironment):
    name = "arithmetic"
    families = ("add2", "add3", "sub2", "mul1")
    evaluation_only = ("add4",)
    generators = {"add2": _add(2), "add3": _add(3), "add4": _add(4), "sub2": _subtract, "mul1": _multiply}
