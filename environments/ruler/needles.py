"""Needles in a haystack: one, one among others like it, all values of a key, the values of several keys."""

import itertools
import random
import uuid
from collections.abc import Iterable, Iterator

from environments.ruler.item import Frame, Make, Measure, enumerated
from environments.ruler.material import Material

LINE_CHARACTERS = 160  # longer lines of a haystack are cut
NOISE = "The rain has come. The river is high. The road goes on. We wait and go back."
HEAD = "Some lines of this text give a value. Remember them."


def single(haystack: str, value: str) -> Make:
    """One needle in noise or in text; its value a number or a UUID."""
    return _niah(haystack, value=value)


def multi_key(haystack: str, key: str, value: str) -> Make:
    """One of four needles, or one in a haystack of nothing but needles."""
    return _niah(haystack, key=key, value=value, keys=4 if haystack == "text" else 1)


def multi_value() -> Make:
    return _niah("text", values=4)


def multi_query() -> Make:
    return _niah("text", keys=4, asked=4)


def _niah(
    haystack: str, key: str = "words", value: str = "number", keys: int = 1, values: int = 1, asked: int = 1
) -> Make:
    def make(
        rng: random.Random, material: Material, measure: Measure, target: int
    ) -> tuple[Frame, Iterable[str]]:
        names = list(itertools.islice(_distinct(rng, key, material), keys))
        given = {name: list(itertools.islice(_distinct(rng, value, material), values)) for name in names}
        needles = [needle(name, one) for name in names for one in given[name]]
        answers = [one for name in names[:asked] for one in given[name]]
        what = "values" if len(answers) > 1 else "value"
        question = f"Which {what} did the text give for {enumerated(names[:asked])}? It gave the {what}"
        frame = Frame(HEAD, question, f" {enumerated(answers)}.", tuple(answers), tuple(needles))
        if haystack == "needles":
            others = zip(_distinct(rng, key, material), _distinct(rng, value, material), strict=False)
            return frame, (needle(name, one) for name, one in others if name not in names)
        return frame, itertools.repeat(NOISE) if haystack == "noise" else text_lines(rng, material)

    return make


def needle(key: str, value: str) -> str:
    return f"One value of {key} is {value}."


def text_lines(rng: random.Random, material: Material) -> Iterator[str]:
    """Consecutive lines from a random place on."""
    place = rng.randrange(len(material.lines))
    for step in range(len(material.lines)):
        line = material.lines[(place + step) % len(material.lines)]
        yield line.replace("\n", " ")[:LINE_CHARACTERS]


def _distinct(rng: random.Random, kind: str, material: Material) -> Iterator[str]:
    seen: set[str] = set()
    while True:
        made = _KINDS[kind](rng, material)
        if made not in seen:
            seen.add(made)
            yield made


def _words(rng: random.Random, material: Material) -> str:
    return "-".join(rng.sample(material.words, 2))


def _number(rng: random.Random, material: Material) -> str:
    return str(rng.randint(1_000_000, 9_999_999))


def _uuid(rng: random.Random, material: Material) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


_KINDS = {"words": _words, "number": _number, "uuid": _uuid}
