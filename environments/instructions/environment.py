"""Writing under constraints that a program can check: case, length, first and last word, what must and must
not be said, lists, JSON. Two at once are kept for evaluation.

As in IFEval the verifier looks at constraints alone. Whether a text keeps to its topic is for a reward model
or a judge to say.
"""

import json
import random
from collections.abc import Callable

from environments.episode import answer
from environments.instructions.constraints import Constraint, broken
from environments.instructions.sentences import FORMS, QUALITIES, TOPICS, sentence
from environments.interface import Draft, Environment, Episode, Message, Mode, Task, Verdict
from environments.written import WrittenEpisode

TRIES = 1000  # sentences until one keeps to the constraints
CASES = {"upper": str.upper, "lower": str.lower, "title": str.title}
STARTS = tuple(sorted({form.split()[0] for form in FORMS}))
COMMON = ("the", "this", "is", "has", "use", "read", *QUALITIES)
COMPARED = ("exactly", "at most", "at least")
FIELDS = ("name", "type", "path", "date")
LEADS = ("on", "say on", "one on")


def one(kind: str, value: object = None) -> Constraint:
    return {"kind": kind, "value": value}


def _draft(prompt: str, asked: str, constraints: list[Constraint], text: str) -> Draft:
    """Its thinking says again what is asked."""
    truth = {"constraints": constraints, "steps": asked, "answers": [text]}
    return Draft(({"role": "user", "content": f"{prompt}, {asked}"},), truth, len(constraints))


def _written(rng: random.Random, asked: str, *constraints: Constraint) -> Draft:
    """A sentence that keeps to the constraints."""
    topic, wanted = rng.choice(TOPICS), [one("sentence"), *constraints]
    case = next((CASES[part["value"]] for part in constraints if part["kind"] == "case"), str)
    for _ in range(TRIES):
        text = case(sentence(rng, topic))
        if not broken(text, wanted):
            return _draft(f"{rng.choice(LEADS)} {topic}", asked, wanted, text)
    raise AssertionError(f"no sentence keeps to {wanted}")  # a fault of this file


def _case(rng: random.Random) -> Draft:
    case = rng.choice(list(CASES))
    return _written(rng, f"{case} case", one("case", case))


def _length(rng: random.Random) -> Draft:
    compared, words = rng.choice(COMPARED), rng.randint(3, 7)
    return _written(rng, f"{compared} {words} words", one(compared, words))


def _edges(rng: random.Random) -> Draft:
    """The first word, the last word."""
    if rng.random() < 0.5:
        start = rng.choice(STARTS)
        return _written(rng, f"start with {start}", one("starts", start))
    end = rng.choice(QUALITIES)
    return _written(rng, f"end with {end}", one("ends", end))


def _use(rng: random.Random) -> Draft:
    words = rng.sample(QUALITIES, rng.randint(1, 2))
    return _written(rng, f"use {' and '.join(words)}", *(one("uses", word) for word in words))


def _avoid(rng: random.Random) -> Draft:
    words = rng.sample(COMMON, rng.randint(1, 2))
    return _written(rng, f"not {' or '.join(words)}", *(one("avoids", word) for word in words))


def _items(rng: random.Random) -> Draft:
    """A list of so many words."""
    number = rng.randint(2, 5)
    words = rng.sample(TOPICS, number)
    return _draft(
        f"{rng.choice(LEADS)} {words[0]}", f"list of {number}", [one("items", number)], ", ".join(words)
    )


def _json(rng: random.Random) -> Draft:
    keys = rng.sample(FIELDS, rng.randint(1, 2))
    text = json.dumps({key: rng.choice(QUALITIES) for key in keys})
    asked = f"json with {' and '.join(keys)}"
    return _draft(f"{rng.choice(LEADS)} {rng.choice(TOPICS)}", asked, [one("keys", keys)], text)


def _both(rng: random.Random) -> Draft:
    """A case and a last word."""
    case, end = rng.choice(list(CASES)), rng.choice(QUALITIES)
    return _written(rng, f"{case} case, end with {end}", one("case", case), one("ends", end))


class Instructions(Environment):
    name = "instructions"
    families = ("case", "length", "edges", "use", "avoid", "items", "json")
    evaluation_only = ("both",)
    _draws: dict[str, Callable[[random.Random], Draft]] = {
        "case": _case, "length": _length, "edges": _edges, "use": _use, "avoid": _avoid, "items": _items,
        "json": _json, "both": _both,
    }  # fmt: skip

    def draw(self, family: str, rng: random.Random) -> Draft:
        return self._draws[family](rng)

    def episode(self) -> Episode:
        return WrittenEpisode(judge)

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        return [answer(None if mode == "off" else task.truth["steps"], task.truth["answers"][0])]


def judge(task: Task, text: str) -> Verdict:
    """1 where every constraint holds, else 0 (IFEval's strict score)."""
    faults = broken(text, task.truth["constraints"])
    return Verdict(0.0, f"not kept: {'; '.join(faults)}") if faults else Verdict(1.0, "all kept")
