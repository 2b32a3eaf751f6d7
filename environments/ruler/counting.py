"""Aggregation: the ten words that a list has most often, the three most frequent ones of a coded text."""

import random
from bisect import bisect_right
from collections.abc import Iterable
from itertools import count

from environments.keys import KEYS
from environments.ruler.item import Frame, Measure, enumerated, too_long
from environments.ruler.material import Material

COMMON = 10
# How often a common word stands in the list, and how often each of the others: RULER's ratio, then what fits.
REPEATS = ((30, 3), (20, 2), (10, 1), (6, 1), (4, 1), (3, 1), (2, 1))
COMMON_SHARE = 0.7  # of the length, that the common words may take
ALPHA, FREQUENT = 2.0, 3
FILLER_WORD = "..."  # the most frequent of the coded text, which nobody asks for


def common_words(
    rng: random.Random, material: Material, measure: Measure, target: int
) -> tuple[Frame, Iterable[str]]:
    """Only whole others are taken, so that each stands there as often as the next."""
    words = rng.sample(material.words, len(material.words))
    asked, others = words[:COMMON], words[COMMON:]
    frame = Frame(
        "This is a list of words; some of them come up more often than others.",
        f"Which {COMMON} words come up most often in the list? They are",
        f" {enumerated(asked)}.", tuple(asked), joint=" ",
    )  # fmt: skip
    room = frame.room(measure, target)
    cost = measure(" ".join(asked) + " ")
    repeats = [(often, seldom) for often, seldom in REPEATS if often * cost <= COMMON_SHARE * room]
    if not repeats:
        raise too_long("cwe", target)
    often, seldom = repeats[0]
    pieces, room = asked * often, room - often * cost
    for word in others:
        if seldom * measure(word + " ") > room:
            break
        pieces += [word] * seldom
        room -= seldom * measure(word + " ")
    rng.shuffle(pieces)
    return frame, pieces


def frequent_words(
    rng: random.Random, material: Material, measure: Measure, target: int
) -> tuple[Frame, Iterable[str]]:
    """Counts fall with the square of the rank, as RULER draws them; here they are exactly that."""
    codes = [first + second for first, second in zip(rng.sample(KEYS, 80), rng.sample(KEYS, 80), strict=True)]
    asked = codes[:FREQUENT]
    frame = Frame(
        "This text is coded. Count how often each word of it comes up.",
        f"Which {FREQUENT} words, {FILLER_WORD} left out, come up most often in the text? They are",
        f" {enumerated(asked)}.", tuple(asked), joint=" ",
    )  # fmt: skip
    room = frame.room(measure, target)
    fits = bisect_right(
        range(max(room, 0)), room, key=lambda most: measure(" ".join(_zipf([FILLER_WORD, *codes], most)))
    )
    for most in range(fits - 1, 0, -1):
        pieces = _zipf([FILLER_WORD, *codes], most)
        if pieces.count(codes[FREQUENT - 1]) > pieces.count(codes[FREQUENT]):
            break
    else:
        raise too_long("fwe", target)
    rng.shuffle(pieces)
    return frame, pieces


def _zipf(words: list[str], most: int) -> list[str]:
    """The first word ``most`` times, the word of rank r ``most / r^2`` times."""
    times = (int(most / rank**ALPHA) for rank in count(1))
    return [word for word, often in zip(words, times, strict=False) for _ in range(often)]
