"""Long-context items as in RULER (arXiv 2404.06654): needles, key-value retrieval, variable tracking, hops.

Forms are short, so that a tiny model can learn them: a key is a letter and a digit, a value is three
digits, a needle is the line ``k4=739`` among haystack lines, and the prompt ends where the answer begins
(``k4=``). An item is scored as in RULER: the share of its answers that occur in the text which the model
gives.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from environments.keys import KEYS
from pipeline.errors import UserError

HELDOUT_ONE_IN = 4  # share of the keys that only evaluation asks for
LINE_CHARACTERS = 200  # longer haystack lines are cut


@dataclass(frozen=True)
class LongItem:
    """``prompt + completion`` is a training text; a model's own completion must hold all ``answers``."""

    task: str
    prompt: str
    completion: str  # ends with a newline
    answers: tuple[str, ...]
    depth: float  # where the (first) needle stands: 0 start of the prompt, 1 end


@dataclass(frozen=True)
class _Plan:
    needles: list[str]  # lines, to be placed in this order
    question: str
    completion: str
    answers: tuple[str, ...]
    asked: int = 0  # index of the needle whose depth is reported


def make_item(
    task: str,
    rng: random.Random,
    haystack: Sequence[str],
    measure: Callable[[str], int],
    target: int,
    heldout: bool = False,
) -> LongItem:
    """An item of at most ``target`` by ``measure`` (say, tokens), filled with lines of ``haystack``.

    The keys asked for are disjoint between ``heldout`` and training items. Raises ``UserError`` for an
    unknown task, for an empty haystack and for a target too small for its needles.
    """
    if task not in TASKS:
        raise UserError(f"there is no long-context task {task!r} (known: {', '.join(TASKS)})")
    keys = [key for key in KEYS if _is_heldout(key) == heldout]
    rng.shuffle(keys)
    plan = TASKS[task](rng, keys)
    fixed = [*plan.needles, plan.question + plan.completion + "\n"]
    budget = target - measure("\n".join(fixed))
    if budget < 0:
        raise UserError(f"a long-context item of {task} does not fit into {target} tokens: raise its length")
    candidates = _pairs(rng, keys) if task == "key_value" else _consecutive(rng, haystack, plan)
    filler = _fill(candidates, measure, budget)
    while filler and measure("\n".join(filler + fixed)) > target:  # joined lines may split into more tokens
        filler.pop()
    return _assemble(task, rng, plan, filler)


def score(item_answers: Sequence[str], text: str) -> float:
    """Share of the answers that occur in ``text``, in [0, 1]."""
    return sum(answer in text for answer in item_answers) / len(item_answers)


def _is_heldout(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % HELDOUT_ONE_IN == 0


def _assemble(task: str, rng: random.Random, plan: _Plan, filler: list[str]) -> LongItem:
    spots = sorted(rng.randint(0, len(filler)) for _ in plan.needles)
    lines = list(filler)
    for offset, (spot, needle) in enumerate(zip(spots, plan.needles, strict=True)):
        lines.insert(spot + offset, needle)
    prompt = "\n".join([*lines, plan.question])
    before = sum(len(line) + 1 for line in lines[: spots[plan.asked] + plan.asked])
    return LongItem(task, prompt, plan.completion + "\n", plan.answers, before / len(prompt))


def _fill(candidates: Iterator[str], measure: Callable[[str], int], budget: int) -> list[str]:
    """Candidates in order, as many as the budget holds; one too long is passed over, the eighth ends it."""
    lines: list[str] = []
    passed_over = 0
    for line in candidates:
        cost = measure(line + "\n")
        if cost <= budget:
            budget -= cost
            lines.append(line)
        elif (passed_over := passed_over + 1) == 8:
            break
    return lines


def _consecutive(rng: random.Random, haystack: Sequence[str], plan: _Plan) -> Iterator[str]:
    """Haystack lines from a random place on, without those that look like a needle of the plan."""
    if not haystack:
        raise UserError("long-context items need haystack lines, and there are none")
    forged = [needle.split("=")[0] + "=" for needle in plan.needles]
    place = rng.randrange(len(haystack))
    for step in range(len(haystack)):
        line = haystack[(place + step) % len(haystack)].replace("\n", " ")[:LINE_CHARACTERS]
        if not any(start in line for start in forged):
            yield line


def _pairs(rng: random.Random, keys: list[str]) -> Iterator[str]:
    """Key-value lines of other keys than those asked for; when short keys run out, pairs of them follow."""
    others = keys[8:]
    for name in [*others, *(first + second for first in others for second in others)]:
        yield f"{name}={_value(rng)}"


def _value(rng: random.Random) -> str:
    return str(rng.randint(100, 999))


def _values(rng: random.Random, count: int) -> list[str]:
    return [str(value) for value in rng.sample(range(100, 1000), count)]


def _needle(rng: random.Random, keys: list[str]) -> _Plan:
    value = _value(rng)
    return _Plan([f"{keys[0]}={value}"], f"{keys[0]}=", value, (value,))


def _multi_key(rng: random.Random, keys: list[str]) -> _Plan:
    values, asked = _values(rng, 4), rng.randrange(4)
    lines = [f"{key}={value}" for key, value in zip(keys, values, strict=False)]
    return _Plan(lines, f"{keys[asked]}=", values[asked], (values[asked],), asked)


def _multi_value(rng: random.Random, keys: list[str]) -> _Plan:
    values = _values(rng, 2)
    return _Plan(
        [f"{keys[0]}={value}" for value in values], f"all {keys[0]}=", ",".join(values), tuple(values)
    )


def _multi_query(rng: random.Random, keys: list[str]) -> _Plan:
    values = _values(rng, 2)
    lines = [f"{key}={value}" for key, value in zip(keys, values, strict=False)]
    completion = f"{values[0]},{keys[1]}={values[1]}"
    asked = rng.randrange(2)
    lines = lines if asked == 0 else lines[::-1]
    return _Plan(lines, f"{keys[0]},{keys[1]}: {keys[0]}=", completion, tuple(values), asked)


def _variables(rng: random.Random, keys: list[str]) -> _Plan:
    """A value handed from variable to variable; asked is who holds it. A second chain distracts."""
    first, second = _values(rng, 2)
    chain, other = keys[0:3], keys[3:6]
    lines = [f"{chain[0]}={first}", f"{other[0]}={second}"]
    lines += [
        f"{chain[1]}={chain[0]}",
        f"{other[1]}={other[0]}",
        f"{chain[2]}={chain[1]}",
        f"{other[2]}={other[1]}",
    ]
    return _Plan(lines, f"{first}: {chain[0]},", ",".join(chain[1:]), tuple(chain[1:]))


def _multi_hop(rng: random.Random, keys: list[str]) -> _Plan:
    """Two hops, given in either order: ``k4=m7`` and ``m7=739``; the completion shows the way."""
    value, other = _values(rng, 2)
    lines = [f"{keys[0]}={keys[1]}", f"{keys[1]}={value}", f"{keys[2]}={keys[3]}", f"{keys[3]}={other}"]
    asked = lines[0]
    rng.shuffle(lines)
    return _Plan(lines, f"end {keys[0]}=", f"{keys[1]}={value}", (value,), lines.index(asked))


TASKS: dict[str, Callable[[random.Random, list[str]], _Plan]] = {
    "needle": _needle,
    "multi_key": _multi_key,
    "multi_value": _multi_value,
    "multi_query": _multi_query,
    "key_value": _needle,
    "variable_tracking": _variables,
    "multi_hop": _multi_hop,
}
