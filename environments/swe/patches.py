"""What a unified diff says: the lines that it adds, and how many it changes."""

import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def added_lines(patch: str) -> dict[str, list[str]]:
    """The lines that a unified diff adds, by file name, without their sign."""
    lines: dict[str, list[str]] = {}
    name = ""
    for header, line in _lines(patch):
        if header and line.startswith("+++ "):
            name = re.sub(r"^[ab]/", "", line[4:].split("\t")[0])
        elif not header and line.startswith("+"):
            lines.setdefault(name, []).append(line[1:])
    return lines


def changed_lines(patch: str) -> int:
    """How many lines a unified diff removes and adds."""
    return sum(not header and line[:1] in ("+", "-") for header, line in _lines(patch))


def _lines(patch: str) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it is a header: what a hunk removes or adds may look like one."""
    left = 0  # lines of old and new text that the hunk still has
    for line in patch.split("\n"):
        hunk = _HUNK.match(line)
        if hunk:
            left = int(hunk[1] or 1) + int(hunk[2] or 1)
        elif left > 0 and not line.startswith("diff --git "):
            left -= 2 if line[:1] in (" ", "") else 1 if line[0] in "+-" else 0
            yield False, line
            continue
        yield True, line
