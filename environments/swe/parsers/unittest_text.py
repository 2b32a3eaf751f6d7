"""``python -m unittest -v``: a status for each announced test, held to ``Ran N tests`` and the last word."""

import re

from environments.swe.grading import ERROR, FAILED, PASSED, SKIPPED, XFAIL, LogRejected, merge
from environments.swe.parsers.colour import without_colour

_TEST = re.compile(r"(\w+) \(([\w.<>]+)\)(.*)")
_STATUS = re.compile(r"(ok|FAIL|ERROR|expected failure|unexpected success|skipped .+)")
_RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s\n+(OK|FAILED|NO TESTS RAN)(?: \(.*\))?\s*\Z", re.M)
_NAMES = {
    "ok": PASSED,
    "FAIL": FAILED,
    "ERROR": ERROR,
    "expected failure": XFAIL,
    "unexpected success": FAILED,
}


def parse_unittest(log: str) -> dict[str, str]:
    log = without_colour(log)
    ran = _RAN.search(log)
    if not ran:
        raise LogRejected("the log does not end with unittest's own count: the run died, or wrote after it")
    results: dict[str, str] = {}
    open_test, tests = None, set()
    for line in log[: ran.start()].partition("\n=====")[0].split("\n"):
        header = _TEST.fullmatch(line)
        if header and open_test is None:
            open_test = _identity(header[1], header[2])
            if open_test in tests:
                raise LogRejected(f"{open_test} is announced twice: the code under test wrote one")
            if header[1] not in ("setUpClass", "tearDownClass", "setUpModule", "tearDownModule"):
                tests.add(open_test)
            line = header[3].removeprefix(" ... ")
        elif header and line.endswith(" ... FAIL"):
            merge(results, open_test, FAILED)
            continue
        status = _STATUS.fullmatch(line.rpartition(" ... ")[2] if _described(line) else line)
        if status and open_test is None:
            raise LogRejected(f"the status {line!r} belongs to no test: the code under test wrote it")
        if status:
            merge(results, open_test, _NAMES.get(status[1], SKIPPED))
            open_test = None
    if len(tests) != int(ran[1]) or open_test is not None:
        raise LogRejected(f"the log announces {len(tests)} tests, unittest counted {ran[1]}")
    if (ran[2] == "FAILED") != any(status in (FAILED, ERROR) for status in results.values()):
        raise LogRejected(f"unittest's last word is {ran[2]}, the statuses above say otherwise")
    return results


def _identity(name: str, owner: str) -> str:
    return owner if owner.endswith("." + name) else f"{owner}.{name}"


def _described(line: str) -> bool:
    """Whether a line is a test's first docstring line and its status; a printed header is not."""
    return " ... " in line and not _TEST.fullmatch(line)
