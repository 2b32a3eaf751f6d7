"""Log parsers by runner: ``parse(runner, log) -> {test id: status}``.

Statuses are those of ``environments.swe.grading``. A parser believes only a log that is whole: it compares
what it read to the counts that the runner states and raises ``LogRejected`` where they differ, where the run
ended in the middle, and where lines stand that the runner cannot have written there. An empty dict is a log
that says that no test ran. Another language is another function in ``PARSERS``.
"""

from collections.abc import Callable

from environments.swe.grading import parse_junit
from environments.swe.parsers.cargo import parse_cargo
from environments.swe.parsers.cpp import parse_ctest, parse_googletest
from environments.swe.parsers.go import parse_go_json, parse_go_text
from environments.swe.parsers.javascript import parse_jest
from environments.swe.parsers.pytest_text import parse_pytest
from environments.swe.parsers.tap import parse_tap
from environments.swe.parsers.unittest_text import parse_unittest
from pipeline.errors import UserError

PARSERS: dict[str, Callable[[str], dict[str, str]]] = {
    "junit": parse_junit,  # pytest --junitxml, Maven surefire, ctest and googletest reports
    "pytest": parse_pytest,  # pytest -rA
    "unittest": parse_unittest,  # python -m unittest -v
    "go-json": parse_go_json,  # go test -json
    "go": parse_go_text,  # go test -v
    "cargo": parse_cargo,  # cargo test
    "jest": parse_jest,  # jest --json, vitest --reporter=json
    "tap": parse_tap,  # node --test --test-reporter=tap, Perl's Test::More
    "googletest": parse_googletest,
    "ctest": parse_ctest,
}


def parse(runner: str, log: str) -> dict[str, str]:
    """Statuses by test id. Raises ``LogRejected`` for a log that is no evidence."""
    if runner not in PARSERS:
        raise UserError(f"there is no log parser {runner!r} (known: {', '.join(PARSERS)})")
    return PARSERS[runner](log)
