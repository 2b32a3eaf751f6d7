"""C and C++: googletest's console form and ctest's table, each held to its closing count."""

import re

from environments.swe.grading import ERROR, FAILED, PASSED, SKIPPED, LogRejected, merge
from environments.swe.parsers.colour import without_colour

_RUN = re.compile(r"\[ RUN      \] (\S+)")
_END = re.compile(r"\[(       OK |  FAILED  |  SKIPPED )\] (\S+?)(?:, where .*)? \(\d+ ms\)")
_ALL = re.compile(r"\[==========\] (\d+) tests? from \d+ test suites? ran\..*")
_GOOGLE = {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}

_ROW = re.compile(r"\s*(\d+)/(\d+) Test\s+#(\d+): (.+?) \.+\s*(Passed|\*\*\*.+?)\s+[\d.]+ sec")
_CLOSING = re.compile(r"\d+% tests passed, (\d+) tests? failed out of (\d+)")


def parse_googletest(log: str) -> dict[str, str]:
    results: dict[str, str] = {}
    running, stated = None, None
    for line in without_colour(log).splitlines():
        if match := _RUN.fullmatch(line):
            running = match[1]
        elif (match := _END.fullmatch(line)) and match[2] == running:
            merge(results, running, _GOOGLE[match[1].strip()])
            running = None
        elif match and running is None:
            raise LogRejected(f"{match[2]} ends without having begun: the code under test wrote a result")
        elif match := _ALL.fullmatch(line):
            stated = int(match[1])
    if stated is None:
        raise LogRejected(
            f"the run ended in the middle of {running}" if running else "no run came to its end"
        )
    if stated != len(results):
        raise LogRejected(f"the log has {len(results)} results, googletest counted {stated}")
    return results


def parse_ctest(log: str) -> dict[str, str]:
    results: dict[str, str] = {}
    rows, disabled, closing = 0, 0, None
    for line in without_colour(log).splitlines():
        if match := _ROW.fullmatch(line):
            rows += 1
            if int(match[1]) != rows:
                raise LogRejected(f"row {match[1]} stands where {rows} is due: the code under test wrote it")
            merge(results, match[4], _ctest_status(match[5]))
            disabled += "(Disabled)" in match[5]
        closing = _CLOSING.fullmatch(line) or closing
        if line.strip() == "No tests were found!!!" and not rows:
            return {}
    if closing is None:
        raise LogRejected("the log does not come to ctest's closing count")
    failed = sum(status in (FAILED, ERROR) for status in results.values())
    if (failed, rows - disabled) != (int(closing[1]), int(closing[2])):
        raise LogRejected(f"ctest counted {closing[0]!r}, the rows above say otherwise")
    return results


def _ctest_status(word: str) -> str:
    if word == "Passed":
        return PASSED
    if word in ("***Skipped", "***Not Run (Disabled)"):
        return SKIPPED
    return FAILED if word in ("***Failed", "***Timeout") else ERROR
