"""The changes between two releases, as hunks that can be taken back one by one."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

CONTEXT = 1  # unchanged lines around a hunk: changes with at most twice as many between them are one


@dataclass(frozen=True)
class Reversal:
    """A release with one hunk of its changes taken back."""

    file: str
    line: int  # where the hunk begins in the release
    broken: str  # the whole file with the hunk taken back


def reversals(old: dict[str, str], new: dict[str, str]) -> Iterator[Reversal]:
    """Every hunk whose reversal changes what the program does and leaves Python that can be parsed.

    ``old`` and ``new``: code by path. Files that only one release has hold no hunk of their own.
    """
    for file in sorted(old.keys() & new.keys()):
        before, after = old[file].splitlines(keepends=True), new[file].splitlines(keepends=True)
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        for group in matcher.get_grouped_opcodes(CONTEXT):
            first, last = group[0], group[-1]
            broken = after[: first[3]] + before[first[1] : last[2]] + after[last[4] :]
            text = "".join(broken)
            if behaviour(text) not in (None, behaviour(new[file])):
                yield Reversal(file, first[3] + 1, text)


def behaviour(code: str) -> str | None:
    """A module's syntax tree without docstrings and version numbers; None where it is no Python."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _says_nothing(statement)]
    return ast.dump(tree)


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return any(isinstance(name, ast.Name) and "version" in name.id.lower() for name in statement.targets)
    return False


def unified(old: dict[str, str], new: dict[str, str]) -> str:
    """A patch from ``old`` to ``new`` that ``git apply`` takes; a file may be missing on either side."""
    parts = []
    for file in sorted(old.keys() | new.keys()):
        before, after = old.get(file), new.get(file)
        if before != after:
            parts.append(_file_patch(file, before, after))
    return "".join(parts)


def _file_patch(file: str, before: str | None, after: str | None) -> str:
    lines = [f"diff --git a/{file} b/{file}\n"]
    if before is None:
        lines.append("new file mode 100644\n")
    if after is None:
        lines.append("deleted file mode 100644\n")
    names = ("/dev/null" if before is None else f"a/{file}", "/dev/null" if after is None else f"b/{file}")
    split = [(text or "").splitlines(keepends=True) for text in (before, after)]
    for line in difflib.unified_diff(*split, *names):
        lines.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(lines)
