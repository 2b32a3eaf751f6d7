"""One programming problem, and inputs that several families share."""

import random
from dataclasses import dataclass
from typing import Any

WORDS = (
    "river",
    "stone",
    "apple",
    "cloud",
    "tiger",
    "lemon",
    "planet",
    "mirror",
    "candle",
    "forest",
    "garden",
    "hammer",
    "island",
    "jacket",
    "kettle",
    "ladder",
    "Anna",
    "level",
    "x",
    "to",
    "a",
    "Zebra",
    "OK",
    "it's",
)


@dataclass(frozen=True)
class Program:
    statement: str
    steps: str
    code: str
    inputs: list[list[Any]]  # argument lists; the first two are shown. Of a class: arguments, then calls
    difficulty: int
    name: str = "f"
    is_class: bool = False


def _numbers(rng: random.Random, least: int = 0, most: int = 9) -> list[int]:
    return [rng.randint(-30, 60) for _ in range(rng.randint(least, most))]


def number_lists(rng: random.Random, count: int = 9) -> list[list[Any]]:
    return [[_numbers(rng, 4)], [_numbers(rng, 4)], [[]], [[0]], *([_numbers(rng)] for _ in range(count - 2))]
