"""``pytest -rA``: the last summary section, held to the counts of the closing line.

Skipped tests are named there by file and line alone: they are counted and left out. A JUnit report has them.
"""

import re
from collections import Counter

from environments.swe.grading import ERROR, FAILED, PASSED, XFAIL, LogRejected, merge
from environments.swe.parsers.colour import without_colour

_SUMMARY = re.compile(r"=+ short test summary info =+")
_CLOSING = re.compile(r"(?:=+ )?((?:no tests ran|\d+ \w+)(?:, \d+ \w+)*) in [\d.]+s(?: \([\d:]+\))?(?: =+)?")
_LINE = re.compile(r"(PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED) (.+)")
_STATUS = {"PASSED": PASSED, "FAILED": FAILED, "ERROR": ERROR, "XFAIL": XFAIL, "XPASS": PASSED}
_COUNTED = {
    "passed": "PASSED", "failed": "FAILED", "error": "ERROR", "errors": "ERROR", "xfailed": "XFAIL",
    "xpassed": "XPASS", "skipped": "SKIPPED",
}  # fmt: skip


def parse_pytest(log: str) -> dict[str, str]:
    lines = without_colour(log).rstrip().split("\n")
    closing = _CLOSING.fullmatch(lines[-1])
    if not closing:
        raise LogRejected("the log does not end with pytest's closing line: the run died, or wrote after it")
    if sum(bool(_CLOSING.fullmatch(line)) for line in lines) > 1:
        raise LogRejected("the log has more than one closing line: the code under test wrote one")
    starts = [number for number, line in enumerate(lines) if _SUMMARY.fullmatch(line)]
    results: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for line in lines[starts[-1] + 1 : -1] if starts else []:
        if match := _LINE.fullmatch(line):
            kind, rest = match.groups()
            seen[kind] += _skips(rest) if kind == "SKIPPED" else 1
            if kind != "SKIPPED":
                merge(results, _name(kind, rest), _STATUS[kind])
    stated = Counter({_COUNTED[word]: count for count, word in _counts(closing[1]) if word in _COUNTED})
    if stated != seen:
        raise LogRejected(f"the summary lists {dict(seen)}, pytest counted {dict(stated)}")
    return results


def _counts(closing: str) -> list[tuple[int, str]]:
    return [(int(count), word) for count, word in re.findall(r"(\d+) (\w+)", closing)]


def _skips(rest: str) -> int:
    """``[3] file:line: reason`` stands for three tests."""
    match = re.match(r"\[(\d+)\] ", rest)
    return int(match[1]) if match else 1


def _name(kind: str, rest: str) -> str:
    """The test id, without `` - reason``; that may stand in a parameter, too."""
    if kind == "PASSED":
        return rest
    head, bracket, tail = rest.partition("[")
    if not bracket or " - " in head:
        return rest.partition(" - ")[0]
    inside, closed, _ = tail.partition("] - ")
    return f"{head}[{inside}]" if closed else rest
