"""What can be asked of a text and checked by a program, in the manner of IFEval (Zhou et al. 2023).

A constraint is plain data, ``{"kind": "ends", "value": "key"}``. All of a task must hold, and whatever is
asked, a sentence must be one: otherwise one word, said often enough, would pass.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from environments.written import words_of

Constraint = dict[str, Any]
SHORTEST, LONGEST = 3, 20  # words of a sentence
MOST_OFTEN = 2  # one word in a sentence
MOST_LETTERS = 3  # words of one letter: "a" and two names


def _case(text: str, value: str) -> bool:
    """Figures alone have no case, though they are equal in all of them."""
    return (
        text.lower() != text.upper()
        and text == {"upper": text.upper(), "lower": text.lower(), "title": text.title()}[value]
    )


def _sentence(text: str, value: None) -> bool:
    """Of a sound length, on one line, no word again and again, no list of letters or figures."""
    words = words_of(text)
    spelt = sum(any(map(str.isalpha, word)) for word in words)
    often, letters = max(Counter(words).values(), default=0), sum(len(word) == 1 for word in words)
    sound = often <= MOST_OFTEN and letters <= MOST_LETTERS
    return SHORTEST <= spelt and len(words) <= LONGEST and sound and len(text.splitlines()) == 1


def _items(text: str, value: int) -> bool:
    """A list with commas of so many different single words."""
    items = [words_of(item) for item in text.split(",")]
    return all(len(item) == 1 for item in items) and len({item[0] for item in items}) == len(items) == value


def _keys(text: str, value: list[str]) -> bool:
    """A JSON object with these keys and no other, none twice, each with a text or number in it."""
    try:
        pairs = json.loads(text, object_pairs_hook=lambda found: found)
    except (ValueError, RecursionError):
        return False
    if not text.startswith("{"):
        return False
    full = all(isinstance(held, str | int | float) and str(held).strip() for _, held in pairs)
    return sorted(key for key, _ in pairs) == sorted(value) and full


CHECKS: dict[str, Callable[[str, Any], bool]] = {
    "case": _case,
    "sentence": _sentence,
    "items": _items,
    "keys": _keys,
    "uses": lambda text, value: value in words_of(text),
    "avoids": lambda text, value: value not in words_of(text),
    "starts": lambda text, value: words_of(text)[:1] == [value],
    "ends": lambda text, value: words_of(text)[-1:] == [value],
    "exactly": lambda text, value: len(words_of(text)) == value,
    "at most": lambda text, value: len(words_of(text)) <= value,
    "at least": lambda text, value: len(words_of(text)) >= value,
}


def broken(text: str, constraints: Sequence[Constraint]) -> list[str]:
    """The constraints that do not hold, in words."""
    return [
        f"{one['kind']} {one['value']}" if one["value"] is not None else one["kind"]
        for one in constraints
        if not CHECKS[one["kind"]](text, one["value"])
    ]
