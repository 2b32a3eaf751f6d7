"""Variable tracking: a value handed on four times, among noise; asked is every variable that holds it."""

import itertools
import random
from collections.abc import Iterable

from environments.ruler.item import Frame, Measure, enumerated
from environments.ruler.material import Material
from environments.ruler.needles import NOISE

HOPS = 4
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NAME = 5  # letters


def variable_tracking(
    rng: random.Random, material: Material, measure: Measure, target: int
) -> tuple[Frame, Iterable[str]]:
    names: list[str] = []
    while len(names) <= HOPS:
        name = "".join(rng.sample(LETTERS, NAME))
        if name not in names:
            names.append(name)
    value = str(rng.randint(10_000, 99_999))
    steps = [f"VAR {names[0]} = {value}"]
    steps += [f"VAR {after} = VAR {before}" for before, after in itertools.pairwise(names)]
    frame = Frame(
        "Lines of this text set variables. Follow them.",
        f"Which {len(names)} variables have the value {value}? They are",
        f" {enumerated(names)}.", tuple(names), tuple(steps), ordered=True,
    )  # fmt: skip
    return frame, itertools.repeat(NOISE)
