"""``cargo test``: of each binary, as many status lines as it announced, held to its result line."""

import re

from environments.swe.grading import FAILED, PASSED, SKIPPED, LogRejected, merge
from environments.swe.parsers.colour import without_colour

_RUNNING = re.compile(r"running (\d+) tests?")
_TEST = re.compile(r"test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)(?:, .*)?")
_RESULT = re.compile(r"test result: (?:ok|FAILED)\. (\d+) passed; (\d+) failed; (\d+) ignored; .*")
_STATUS = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}


def parse_cargo(log: str) -> dict[str, str]:
    results: dict[str, str] = {}
    announced, section, binaries = 0, None, 0
    for line in without_colour(log).splitlines():
        if (match := _RUNNING.fullmatch(line)) and section is None:
            announced, section, binaries = int(match[1]), [], binaries + 1
        elif section is None:
            continue
        elif (match := _TEST.fullmatch(line)) and len(section) < announced:
            section.append((match[1], _STATUS[match[2]]))
        elif match := _RESULT.fullmatch(line):
            _check(section, announced, [int(count) for count in match.groups()])
            for test, status in section:
                merge(results, test, status)
            section = None
    if section is not None or not binaries:
        raise LogRejected("no test binary ran to its end: it was not built, or died")
    return results


def _check(section: list[tuple[str, str]], announced: int, stated: list[int]) -> None:
    statuses = [status for _, status in section]
    counted = [statuses.count(status) for status in (PASSED, FAILED, SKIPPED)]
    if counted != stated or len(section) != announced or len(dict(section)) != announced:
        raise LogRejected(f"cargo counted {stated} passed, failed and ignored, the lines above say {counted}")
