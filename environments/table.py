"""Small tables: the largest entry, its name, sorting, look-up by name."""

import random
from collections.abc import Callable
from itertools import accumulate

from environments.keys import LETTERS
from environments.question import Question, QuestionEnvironment


def insertion_steps(digits: str) -> str:
    """``insertion_steps("7294")`` is ``7,27,279,2479``: each digit put into its place."""
    return ",".join("".join(sorted(digits[:count])) for count in range(1, len(digits) + 1))


def _extreme(word: str, choose: Callable[[int, int], int]):
    def draw(rng: random.Random) -> Question:
        numbers = rng.sample(range(10, 100), 4)
        running = list(accumulate(numbers, choose))
        prompt = f"{word} {','.join(map(str, numbers))}"
        return Question(prompt, ",".join(map(str, running)), str(running[-1]), len(numbers))

    return draw


def _sort(rng: random.Random) -> Question:
    digits = "".join(rng.sample("0123456789", rng.randint(4, 5)))
    return Question(f"sort {digits}", insertion_steps(digits), "".join(sorted(digits)), len(digits))


def _rows(rng: random.Random, low: int, high: int) -> dict[str, str]:
    names = rng.sample(LETTERS, rng.randint(low, high))
    return {name: str(rng.randrange(10)) for name in names}


def _get(rng: random.Random) -> Question:
    rows = _rows(rng, 4, 8)
    asked = rng.choice(list(rows))
    table = ",".join(name + value for name, value in rows.items())
    return Question(f"{asked} in {table}", asked + rows[asked], rows[asked], len(rows))


def _best(rng: random.Random) -> Question:
    """Whose number is largest: the running best row."""
    names = rng.sample(LETTERS, rng.randint(3, 5))
    values = rng.sample("0123456789", len(names))
    rows = [name + value for name, value in zip(names, values, strict=True)]
    running = list(accumulate(rows, lambda left, right: max(left, right, key=lambda row: row[1])))
    return Question(f"best {','.join(rows)}", ",".join(running), running[-1][0], len(rows))


class Table(QuestionEnvironment):
    name = "table"
    families = ("max", "sort", "get", "best")
    evaluation_only = ("min",)
    generators = {
        "max": _extreme("max", max),
        "min": _extreme("min", min),
        "sort": _sort,
        "get": _get,
        "best": _best,
    }
