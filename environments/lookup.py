"""Look-ups with a search tool over a corpus that the policy cannot see: facts, hops, real signatures."""

import ast
import random
from collections.abc import Iterable

from environments.episode import ScriptedEpisode, answer, call_message, tool_schema
from environments.interface import Draft, Environment, Episode, Message, Mode, Task
from environments.keys import KEYS
from pipeline.errors import UserError

SEARCH = tool_schema("search", "q")
NOTHING = "none"
FACTS = 12  # in a corpus
MIN_SIGNATURES = 100
MAX_SIGNATURES = 4000


class SearchEpisode(ScriptedEpisode):
    def call(self, name: str, arguments: dict[str, str]) -> str:
        """What the corpus says about a key, or ``none``."""
        return self.task.truth["facts"].get(arguments["q"], NOTHING)


def signatures(sources: Iterable[str]) -> dict[str, str]:
    """``{"clamp": "clamp(x, low, high)"}`` for the functions of Python sources.

    Plain names with one to three parameters. A name defined with different parameters in several places is
    left out; sources that do not parse are passed over.
    """
    found: dict[str, str] = {}
    clashing: set[str] = set()
    for source in sources:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (text := _signature(node)):
                if found.setdefault(node.name, text) != text:
                    clashing.add(node.name)
        if len(found) - len(clashing) >= MAX_SIGNATURES:
            break
    return {name: found[name] for name in sorted(found) if name not in clashing}


def _signature(node: ast.FunctionDef) -> str | None:
    names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
    plain = not (node.args.vararg or node.args.kwarg or node.args.kwonlyargs or node.args.posonlyargs)
    short = len(node.name) <= 12 and not node.name.startswith("_") and node.name.isascii()
    if not (plain and short and 1 <= len(names) <= 3):
        return None
    return f"{node.name}({', '.join(names)})"


class Lookup(Environment):
    """``documents`` are Python sources; with too few functions in them the family ``code`` is left out.

    The other families ask for keys of two tokens from a closed set. ``code`` asks for names that were never
    seen: they must be copied, several tokens each and not the same ones, since a name that follows a space is
    cut otherwise than one that a call begins with. A model too small for that answers with frequent names.
    """

    name = "lookup"

    def __init__(self, documents: Iterable[str] = ()):
        self._signatures = signatures(documents)
        draws = {"fact": _fact, "two": _two, "hop": _hop}
        if len(self._signatures) >= MIN_SIGNATURES:
            draws["code"] = self._code
        self._draws, self.families = draws, tuple(draws)

    def refuse_untrained(self, family: str) -> None:
        if family != "code":  # whether there is any depends on the documents, see ``make_task``
            super().refuse_untrained(family)

    def make_task(self, family: str, seed: int, heldout: bool = False) -> Task:
        if family == "code" and family not in self._draws:
            raise UserError(
                f"lookup/code needs Python documents with {MIN_SIGNATURES} plain functions and got "
                f"{len(self._signatures)}: add a source of Python code or leave the family out"
            )
        return super().make_task(family, seed, heldout)

    def draw(self, family: str, rng: random.Random) -> Draft:
        return self._draws[family](rng)

    def episode(self) -> Episode:
        return SearchEpisode()

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        """Searches each key of each turn, then answers with what the last result says."""
        messages = []
        for keys, result in zip(task.truth["searches"], task.truth["answers"], strict=True):
            messages += [call_message(_thought(key, mode), "search", q=key) for key in keys]
            messages.append(answer(_thought(result, mode), result))
        return messages

    def mistake(self, task: Task, mode: Mode, rng: random.Random) -> Message | None:
        """A search for something else than was asked."""
        asked = task.truth["searches"][0][0]
        other = rng.choice([key for key in [*task.truth["facts"], "x"] if key != asked])
        return call_message(_thought(other, mode), "search", q=other)

    def _code(self, rng: random.Random) -> Draft:
        names = rng.sample(list(self._signatures), FACTS)
        facts = {name: self._signatures[name] for name in names}
        asked = names[0]
        result = facts[asked][len(asked) + 1 : -1]
        return _draft(f"args of {asked}", facts, [[asked]], [result])


def _thought(text: str, mode: Mode) -> str | None:
    return None if mode == "off" else text


def _draft(
    prompt: str, facts: dict[str, str], searches: list[list[str]], answers: list[str], *follow_ups: str
) -> Draft:
    truth = {"answers": answers, "follow_ups": list(follow_ups), "facts": facts, "searches": searches}
    return Draft(({"role": "user", "content": prompt},), truth, sum(map(len, searches)), (SEARCH,))


def _corpus(rng: random.Random) -> tuple[list[str], dict[str, str]]:
    keys = rng.sample(KEYS, FACTS)
    return keys, {key: f"{key}={rng.randint(100, 999)}" for key in keys}


def _value(fact: str) -> str:
    return fact.partition("=")[2]


def _fact(rng: random.Random) -> Draft:
    """One key; in one of eight tasks the corpus does not know it, and the right answer is ``none``."""
    (asked, *_), facts = _corpus(rng)
    result = _value(facts[asked])
    if rng.random() < 0.125:
        del facts[asked]
        result = NOTHING
    return _draft(f"find {asked}", facts, [[asked]], [result])


def _two(rng: random.Random) -> Draft:
    """Two questions of a dialogue over one corpus."""
    (first, second, *_), facts = _corpus(rng)
    answers = [_value(facts[first]), _value(facts[second])]
    return _draft(f"find {first}", facts, [[first], [second]], answers, f"find {second}")


def _hop(rng: random.Random) -> Draft:
    """A key whose value is another key, once or twice, until a number comes."""
    keys, facts = _corpus(rng)
    path = keys[: rng.randint(2, 3)]
    for key, following in zip(path, path[1:], strict=False):
        facts[key] = f"{key}={following}"
    return _draft(f"end {path[0]}", facts, [path], [_value(facts[path[-1]])])
