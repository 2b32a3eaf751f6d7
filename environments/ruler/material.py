"""What RULER's items are made of, read from documents that were never trained on: lines, words, functions."""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from pipeline.errors import UserError

WORD = re.compile(r"(?<![\w])[a-z]{4,8}(?![\w])")
LEAST_WORDS = 60
LEAST_FUNCTIONS, LEAST_CALLS = 12, 4
EXCERPT_LINES, EXCERPT_CHARACTERS = 3, 72


@dataclass(frozen=True)
class Function:
    """``excerpt`` begins with the line of the definition; the first that calls a known function follows."""

    name: str
    parameters: str  # as they stand in the excerpt, without the bracket
    excerpt: str
    calls: str | None  # the function of the material that this line calls


@dataclass(frozen=True)
class Material:
    lines: Sequence[str]
    words: Sequence[str]  # different ones, sorted
    functions: Sequence[Function]  # of different names and parameters

    @classmethod
    def read(cls, lines: Sequence[str], sources: Iterable[str]) -> Self:
        """From lines of text and whole Python sources. Raises ``UserError`` for too few words."""
        words = sorted({word for line in lines for word in WORD.findall(line)})
        if len(words) < LEAST_WORDS:
            raise UserError(
                f"the held-out documents have {len(words)} plain words, and long-context items need "
                f"{LEAST_WORDS}: raise eval_sets.heldout_fraction or collect more"
            )
        return cls(lines, words, read_functions(sources))

    def callers(self) -> list[Function]:
        return [function for function in self.functions if function.calls]

    def can_ask(self, hops: int) -> bool:
        """Whether there are functions enough for questions of so many hops."""
        return len(self.functions) >= LEAST_FUNCTIONS and (hops == 1 or len(self.callers()) >= LEAST_CALLS)


def read_functions(sources: Iterable[str]) -> list[Function]:
    """Functions with two parameters or more, sorted by name. Of those with one name or with the same
    parameters the first is taken; sources that do not parse are passed over.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    taken: set[str] = set()
    for source in sources:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (parameters := _parameters(node, lines)):
                if node.name not in taken and parameters not in taken:
                    taken |= {node.name, parameters}
                    found[node.name] = parameters, lines[node.lineno - 1 : node.end_lineno]
    return [_function(name, found) for name in sorted(found)]


def _parameters(node: ast.FunctionDef, lines: list[str]) -> str | None:
    """The text between the brackets where it stands on one short line, else None."""
    line = lines[node.lineno - 1].strip()
    match = re.fullmatch(rf"def {re.escape(node.name)}\(([^()]+)\)[^()]*:", line)
    plain = len(node.args.args) >= 2 and len(node.name) >= 4 and not node.name.startswith("__")
    if match is None or not plain or len(line) > EXCERPT_CHARACTERS:
        return None
    return match[1]


def _function(name: str, found: dict[str, tuple[str, list[str]]]) -> Function:
    parameters, lines = found[name]
    calls, shown = None, [line.strip() for line in lines if line.strip()]
    for line in shown[1:]:
        known = {called for called in re.findall(r"(\w+)\(", line) if called in found}
        if len(known) == 1 and name not in known and len(line) <= EXCERPT_CHARACTERS:
            [calls], shown = known, [shown[0], line]
            break
    excerpt = "\n".join(line[:EXCERPT_CHARACTERS] for line in shown[:EXCERPT_LINES])
    return Function(name, parameters, excerpt, calls)
