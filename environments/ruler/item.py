"""RULER's 13 tasks (arXiv 2404.06654) over text of our own: a port, with its structure and its scoring.

What differs: haystack, words and questions come from held-out documents instead of essays, a word list, SQuAD
and HotpotQA; questions are about Python functions, over one passage or two; frames are shorter, without
RULER's worked examples, so that an item fits some hundred tokens; lists shrink with the length. Values,
numbers of needles, chains and answers are RULER's.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from environments.ruler.material import Material
from pipeline.errors import UserError

Match = Literal["all", "part"]
Measure = Callable[[str], int]


@dataclass(frozen=True)
class RulerItem:
    """``prompt + completion`` is a right text. ``match``: whether all answers count, or any one is enough."""

    task: str
    prompt: str
    completion: str
    answers: tuple[str, ...]
    match: Match


@dataclass(frozen=True)
class Frame:
    """What stands around the filler, and how the filler is joined to what it hides."""

    head: str
    question: str
    completion: str
    answers: tuple[str, ...]
    needles: tuple[str, ...] = ()  # hidden in the filler; see ``ordered``
    ordered: bool = False  # the needles keep their order
    match: Match = "all"
    joint: str = "\n"

    def text(self, pieces: Sequence[str]) -> str:
        return f"{self.head}\n{self.joint.join(pieces)}\n{self.question}"

    def room(self, measure: Measure, target: int) -> int:
        """What ``target`` leaves for filler; below 0 where the rest alone is longer."""
        return target - measure(self.text(self.needles) + self.completion)


Make = Callable[[random.Random, Material, Measure, int], tuple[Frame, Iterable[str]]]


def score(answers: Sequence[str], match: Match, text: str) -> float:
    """The share of the answers that occur in ``text``, or whether any does; case does not matter."""
    text = text.lower()
    found = [answer.lower() in text for answer in answers]
    return float(any(found)) if match == "part" else sum(found) / len(found)


def fill(
    task: str, frame: Frame, filler: Iterable[str], rng: random.Random, measure: Measure, target: int
) -> RulerItem:
    """Take as much of the filler as fits into ``target``, hide the needles in it, ask."""
    room = frame.room(measure, target)
    if room < 0:
        raise too_long(task, target)
    pieces = list(_take(_unlike(filler, frame), measure, room, frame.joint))
    while pieces and measure(frame.text([*pieces, *frame.needles]) + frame.completion) > target:
        pieces.pop()  # joined pieces may split into more tokens
    needles = list(frame.needles)
    if not frame.ordered:
        rng.shuffle(needles)
    spots = sorted(rng.randint(0, len(pieces)) for _ in needles)
    for offset, (spot, needle) in enumerate(zip(spots, needles, strict=True)):
        pieces.insert(spot + offset, needle)
    return RulerItem(task, frame.text(pieces), frame.completion, frame.answers, frame.match)


def _unlike(filler: Iterable[str], frame: Frame) -> Iterator[str]:
    """Filler without a right answer in it; lists have no needles, and answers in their filler."""
    forbidden = [answer.lower() for answer in frame.answers] if frame.needles else []
    return (piece for piece in filler if not any(answer in piece.lower() for answer in forbidden))


def _take(filler: Iterable[str], measure: Measure, room: int, joint: str) -> Iterator[str]:
    """One too long is passed over, the eighth ends it."""
    passed_over = 0
    for piece in filler:
        cost = measure(piece + joint)
        if cost <= room:
            room -= cost
            yield piece
        elif (passed_over := passed_over + 1) == 8:
            return


def too_long(task: str, target: int) -> UserError:
    return UserError(f"an item of {task} does not fit into {target} tokens: raise eval_sets.ruler_lengths")


def enumerated(items: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else items[0]
