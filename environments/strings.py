"""Copying, reversing and counting, of letters and words that are one token of a small vocabulary each."""

import random

from environments.keys import LETTERS
from environments.question import Question, QuestionEnvironment

# Words that source code is full of: one token each even in a vocabulary of 2,048.
WORDS = (
    "name", "type", "value", "file", "path", "list", "data", "line", "key", "code", "time", "test", "string",
    "index", "number", "class", "module", "error", "object", "function",
)  # fmt: skip


def _letters(rng: random.Random, low: int, high: int) -> list[str]:
    return rng.choices(LETTERS, k=rng.randint(low, high))


def _indexed(items: list[str]) -> str:
    return "".join(f"{place}{item}" for place, item in enumerate(items, 1))


def _copy(rng: random.Random) -> Question:
    text = " ".join(_letters(rng, 4, 8))
    return Question(f"copy {text}", text, text, len(text.split()))


def _reverse(rng: random.Random) -> Question:
    letters = _letters(rng, 4, 6)
    return Question(
        f"reverse {' '.join(letters)}", _indexed(letters), " ".join(reversed(letters)), len(letters)
    )


def _words(rng: random.Random) -> Question:
    words = rng.sample(WORDS, rng.randint(3, 5))
    return Question(f"words {' '.join(words)}", _indexed(words), " ".join(reversed(words)), len(words))


def _count(rng: random.Random) -> Question:
    wanted = str(rng.randrange(10))
    digits = [wanted if rng.random() < 0.4 else str(rng.randrange(10)) for _ in range(rng.randint(4, 6))]
    steps, seen = [], 0
    for digit in digits:
        seen += digit == wanted
        steps.append(f"{digit}{wanted}={seen}")
    return Question(f"count {wanted} in {''.join(digits)}", ",".join(steps), str(seen), len(digits))


def _rotate(rng: random.Random) -> Question:
    letters = _letters(rng, 4, 6)
    return Question(
        f"rotate {' '.join(letters)}", _indexed(letters), " ".join(letters[1:] + letters[:1]), len(letters)
    )


class Strings(QuestionEnvironment):
    name = "string"
    families = ("copy", "reverse", "words", "count")
    evaluation_only = ("rotate",)
    generators = {"copy": _copy, "reverse": _reverse, "words": _words, "count": _count, "rotate": _rotate}
