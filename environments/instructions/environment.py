"""Writing under constraints that a program can check: case, length, first and last word, what must and must
not be said, lists, JSON. Two at once are kept for evaluation.
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


def one(kind: str, value: object = None) -> Constraint:
    return {"kind": kind, "value": value}


def _draft(prompt: str, constraints: list[Constraint], steps: str, text: str) -> Draft:
    truth = {"constraints": constraints, "steps": steps, "answers": [text]}
    return Draft(({"role": "user", "content": prompt},), truth, len(constraints))


def _written(
    rng: random.Random, topic: str, asked: str, constraints: list[Constraint], other: str | None = None
) -> Draft:
    """A sentence that keeps to the constraints. Its thinking says again what is asked."""
    constraints = [one("sentence"), one("uses", topic), *constraints]
    case = next((CASES[part["value"]] for part in constraints if part["kind"] == "case"), str)
    prompt = f"{rng.choice(('on', 'say on', 'one on'))} {topic}{asked}"
    for _ in range(TRIES):
        text = case(sentence(rng, topic, other))
        if not broken(text, constraints):
            return _draft(prompt, constraints, f"on {topic}{asked}", text)
    raise AssertionError(f"no sentence keeps to {constraints}")  # a fault of this file


def _case(rng: random.Random) -> Draft:
    case = rng.choice(list(CASES))
    wanted = rng.choice((f", {case} case", f" in {case} case"))
    return _written(rng, rng.choice(TOPICS), wanted, [one("case", case)])


def _length(rng: random.Random) -> Draft:
    compared, words = rng.choice(COMPARED), rng.randint(3, 7)
    wanted = rng.choice((f", {compared} {words} words", f" in {compared} {words} words"))
    return _written(rng, rng.choice(TOPICS), wanted, [one(compared, words)])


def _edges(rng: random.Random) -> Draft:
    """The first word, the last word."""
    topic, other = rng.sample(TOPICS, 2)
    if rng.random() < 0.5:
        start = rng.choice(STARTS)
        return _written(rng, topic, f", start with {start}", [one("starts", start)])
    return _written(rng, topic, f", end with {other}", [one("ends", other)], other)


def _use(rng: random.Random) -> Draft:
    topic, other = rng.sample(TOPICS, 2)
    wanted = rng.choice((f" and {other}", f" with {other}"))
    return _written(rng, topic, wanted, [one("uses", other)], other)


def _avoid(rng: random.Random) -> Draft:
    words = rng.sample(COMMON, rng.randint(1, 2))
    wanted = rng.choice((", not ", " but not ")) + " or ".join(words)
    return _written(rng, rng.choice(TOPICS), wanted, [one("avoids", word) for word in words])


def _items(rng: random.Random) -> Draft:
    """A list of so many words, one of which is given."""
    number = rng.randint(2, 5)
    words = rng.sample(TOPICS, number)
    given = rng.choice(words)
    prompt = rng.choice((f"list {number} letters with {given}", f"list of {number} and {given} in it"))
    return _draft(prompt, [one("items", number), one("uses", given)], f"{number} {given}", ", ".join(words))


def _json(rng: random.Random) -> Draft:
    keys = rng.sample(TOPICS, rng.randint(1, 3))
    text = json.dumps({key: rng.choice(QUALITIES) for key in keys})
    asked = " and ".join(f'"{key}"' for key in keys)
    prompt = rng.choice(("json with ", "json of ", "keys ")) + asked
    return _draft(prompt, [one("keys", keys)], asked, text)


def _both(rng: random.Random) -> Draft:
    """A case and a last word."""
    topic, other = rng.sample(TOPICS, 2)
    case = rng.choice(list(CASES))
    asked = f", {case} case, end with {other}"
    return _written(rng, topic, asked, [one("case", case), one("ends", other)], other)


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
