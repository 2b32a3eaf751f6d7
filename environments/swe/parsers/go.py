"""Go: ``go test -json`` and ``go test -v``. Test ids are ``package.TestName/subtest``."""

import json
import re

from environments.swe.grading import ERROR, FAILED, PASSED, SKIPPED, LogRejected, merge
from environments.swe.parsers.colour import without_colour

_STATUS = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}
_RESULT = re.compile(r"\s*--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)")
_PACKAGE = re.compile(r"(ok  |FAIL|\?   )\t(\S+)(?:\s+(.*))?")


def parse_go_json(log: str) -> dict[str, str]:
    results: dict[str, str] = {}
    running, ended = set(), set()
    for line in log.splitlines():
        if not line.startswith("{"):
            _note_build_failure(line, results, ended)
            continue
        try:
            event = json.loads(line)
            action, package = event["Action"], event["Package"]
        except (ValueError, KeyError, TypeError):
            raise LogRejected("a line of the log is no event of go test -json: it was cut off") from None
        test = f"{package}.{event['Test']}" if "Test" in event else None
        if action == "run":
            running.add(test)
        elif action in _STATUS and test:
            merge(results, test, _STATUS[action])
            running.discard(test)
        elif action in _STATUS:
            ended.add(package)
            if action == "fail" and not _failed_in(results, package):
                merge(results, package, ERROR)
    for test in running:
        merge(results, test, ERROR)
    if not ended:
        raise LogRejected("no package of the log came to an end")
    return results


def parse_go_text(log: str) -> dict[str, str]:
    results: dict[str, str] = {}
    pending: dict[str, str] = {}
    ended: set[str] = set()
    for line in without_colour(log).splitlines():
        if match := _RESULT.fullmatch(line):
            merge(pending, match[2], _STATUS[match[1].lower()])
        elif match := _PACKAGE.fullmatch(line):
            package = match[2]
            ended.add(package)
            for test, status in pending.items():
                merge(results, f"{package}.{test}", status)
            if match[1] == "FAIL" and not _failed_in(results, package):
                merge(results, package, ERROR)
            pending = {}
    if pending or not ended:
        raise LogRejected("the log ends before its package does")
    return results


def _note_build_failure(line: str, results: dict[str, str], ended: set[str]) -> None:
    match = _PACKAGE.fullmatch(line)
    if match and match[1] == "FAIL":
        merge(results, match[2], ERROR)
        ended.add(match[2])


def _failed_in(results: dict[str, str], package: str) -> bool:
    return any(
        status in (FAILED, ERROR) for test, status in results.items() if test.startswith(package + ".")
    )
