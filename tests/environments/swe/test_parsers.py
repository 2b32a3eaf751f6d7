"""Log parsers against what real runners wrote (``fixtures/``), and against logs that were tampered with."""

import json
from pathlib import Path

import pytest

from environments.swe.grading import LogRejected
from environments.swe.parsers import PARSERS, parse
from environments.swe.parsers.__main__ import main
from environments.swe.parsers.colour import without_colour
from pipeline.errors import UserError

FIXTURES = Path(__file__).parent / "fixtures"
RUNNERS = {"pytest_junit": "junit", "surefire": "junit", "go_json": "go-json", "vitest": "jest"}

P, F, S, E, X = "PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"
PYTEST = {
    "test_passes": P, "test_fails": F, "test_expected": X, "test_error": E,
    "TestGroup::test_each[a b]": P, "TestGroup::test_each[x - y]": P, "TestGroup::test_each[[z]]": P,
}  # fmt: skip
PYTEST = {f"test_mixed.py::{name}": status for name, status in PYTEST.items()}
UNITTEST = {
    "test_error": E, "test_expected": X, "test_fails": F, "test_passes": P, "test_skipped": S,
    "test_unexpected": F,
}  # fmt: skip
GO = {
    "TestPasses": P, "TestFails": F, "TestSkipped": S, "TestGroup": F,
    "TestGroup/one": P, "TestGroup/two_words": F,
}  # fmt: skip
GO_CRASH = {"TestFirst": P, "TestDies": F}
CARGO = {"tests::panics": P, "tests::fails": F, "tests::passes": P, "tests::skipped": S}
JEST = {"passes": P, "fails": F, "skipped": S, "later": S, "group > inner": P}
EACH = {"Numbers/Each.Works/0": P, "Numbers/Each.Works/1": P}
GOOGLE = {"Group.Passes": P, "Group.Fails": F, "Group.Skipped": S, "Group.Dies": P, **EACH}


def under(prefix: str, results: dict[str, str]) -> dict[str, str]:
    return {prefix + name: status for name, status in results.items()}


WANTED = {
    "pytest/mixed.log": PYTEST,  # its passing test prints a summary of its own
    "pytest/colour.log": PYTEST,
    "pytest/nothing.log": {},
    "pytest/syntax.log": {"test_syntax.py": E},
    "pytest_junit/mixed.xml": {**PYTEST, "test_mixed.py::test_skipped": S},
    "pytest_junit/nothing.xml": {},
    "pytest_junit/syntax.xml": {"test_syntax": E},
    "pytest_junit/atexit.xml": {"test_atexit.py::test_fails": F},
    "unittest/honest.log": under("unit_honest.Group.", {**UNITTEST, "test_prints": P}),
    "unittest/mixed.log": {**under("unit_mixed.Group.", UNITTEST), "unit_mixed.Broken.setUpClass": E},
    "unittest/nothing.log": {},
    "go/honest.log": under("example.org/demo/honest.", GO),
    "go/forged.log": under("example.org/demo/a.", GO),
    "go/crash.log": under("example.org/demo/crash.", GO_CRASH),
    "go/none.log": {},
    "go/bad.log": {"example.org/demo/bad": E},
    "go_json/honest.log": under("example.org/demo/honest.", GO),
    "go_json/forged.log": under("example.org/demo/a.", GO),
    "go_json/crash.log": under("example.org/demo/crash.", GO_CRASH),
    "go_json/none.log": {},
    "go_json/bad.log": {"example.org/demo/bad": E},
    "cargo/honest.log": CARGO,
    "cargo/colour.log": {**CARGO, "src/lib.rs - (line 1)": P},
    "cargo/forged.log": {"tests::fails": F},
    "cargo/nothing.log": {},
    "jest/honest.json": under("/app/j/honest.test.js > ", JEST),
    "jest/none.json": {"/app/j/none.test.js": E},
    "jest/broken.json": {"/app/j/broken.test.js": E},
    "vitest/honest.json": under("/app/v/honest.test.js > ", JEST),
    "vitest/none.json": {"/app/v/none.test.js": E},
    "vitest/broken.json": {"/app/v/broken.test.js": E},
    "tap/perl.log": {"passes": P, "fails": F, "3": S, "expected": X, "group > inner": P, "group": P},
    "tap/node.log": {
        "passes": P, "fails": F, "skipped": S, "expected": X, "group > inner": P,
        "group > broken": F, "group": F,
    },
    "tap/nothing.log": {},
    "googletest/failing.log": GOOGLE,
    "googletest/forged.log": GOOGLE,
    "googletest/honest.log": {"Group.Passes": P, "Group.Skipped": S, **EACH},
    "googletest/colour.log": {"Group.Passes": P, "Group.Skipped": S, "Group.Dies": P, **EACH},
    "googletest/nothing.log": {},
    "googletest/report.xml": GOOGLE,
    "ctest/mixed.log": {
        "passes": P, "two words": P, "fails": F, "skipped": S, "missing": E, "dies": E, "disabled": S,
    },
    "ctest/forged.log": {"passes": P, "fails": F},
    "ctest/nothing.log": {},
    "ctest/report.xml": {
        "passes.passes": P, "two words.two words": P, "fails.fails": F, "skipped.skipped": S,
        "missing.missing": S, "dies.dies": F, "disabled.disabled": S,
    },
    "surefire/mixed.xml": under("DemoTest.", {"passes": P, "fails": F, "skipped": S, "errs": E}),
}  # fmt: skip
REJECTED = {
    "pytest/crash.log": "closing line",  # os._exit(0) in a test
    "pytest/atexit.log": "more than one closing line",
    "unittest/crash.log": "own count",
    "cargo/crash.log": "to its end",
    "cargo/broken.log": "to its end",
    "tap/crash.log": "1 results for a plan of 3",
    "tap/forged.log": "result 1 stands where 2 is due",
    "googletest/crash.log": "in the middle of Group.Dies",
}


def fixture(name: str) -> tuple[str, str]:
    """Runner and log."""
    path = FIXTURES / name
    folder = path.parent.name
    return "junit" if path.suffix == ".xml" else RUNNERS.get(folder, folder), path.read_text()


@pytest.mark.parametrize("name", WANTED)
def test_statuses_of_a_real_log(name):
    assert parse(*fixture(name)) == WANTED[name]


@pytest.mark.parametrize("name", REJECTED)
def test_a_log_that_is_no_evidence_is_rejected(name):
    with pytest.raises(LogRejected, match=REJECTED[name]):
        parse(*fixture(name))


def test_every_fixture_and_every_parser_is_held_to_something():
    files = {file.relative_to(FIXTURES).as_posix() for file in FIXTURES.rglob("*.*") if file.is_file()}
    assert files == set(WANTED) | set(REJECTED)
    assert {fixture(name)[0] for name in files} == set(PARSERS)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("unittest/honest.log", "test_fails (unit_honest.Group.test_fails) ... ok\n"),
        ("tap/perl.log", "ok 6 - fails\n"),
        ("googletest/failing.log", "[       OK ] Group.Fails (0 ms)\n"),
        ("ctest/mixed.log", "3/7 Test #3: fails ............................   Passed    0.00 sec\n"),
    ],
)
def test_a_forged_success_in_front_of_the_log_is_noticed(name, line):
    runner, log = fixture(name)
    with pytest.raises(LogRejected):
        parse(runner, line + log)


def test_a_whole_second_summary_at_exit_is_noticed():
    _, log = fixture("pytest/mixed.log")
    forged = "=== short test summary info ===\nPASSED test_mixed.py::test_fails\n=== 1 passed in 0.1s ===\n"
    with pytest.raises(LogRejected, match="more than one"):
        parse("pytest", log + forged)


def test_forged_go_results_do_not_hide_a_failure():
    runner, log = fixture("go/forged.log")
    failed = "--- FAIL: TestFails (0.00s)"
    later = log.replace(failed, failed + "\n--- PASS: TestFails (0.00s)")
    assert later != log
    assert parse(runner, later)["example.org/demo/a.TestFails"] == F


@pytest.mark.parametrize("name", [name for name in WANTED if WANTED[name] and "none" not in name])
def test_a_log_that_was_cut_off_is_rejected_or_says_less(name):
    """Never a status that the whole log does not have."""
    runner, log = fixture(name)
    for end in range(0, len(log), max(1, len(log) // 40)):
        try:
            results = parse(runner, log[:end])
        except LogRejected:
            continue
        assert set(results.items()) <= set(WANTED[name].items()) or runner in ("go", "go-json")


def test_reports_with_entities_and_other_roots_are_rejected():
    with pytest.raises(LogRejected, match="entities"):
        parse("junit", '<!DOCTYPE a [<!ENTITY b "c">]><testsuites/>')
    with pytest.raises(LogRejected, match="its root is html"):
        parse("junit", "<html/>")


def test_a_test_reported_twice_counts_as_the_worse():
    case = '<testcase classname="a" name="b"'
    report = f"<testsuite>{case}><error/></testcase>{case}/></testsuite>"
    assert parse("junit", report) == {"a.b": E}


def test_an_unknown_runner_is_one_sentence():
    with pytest.raises(UserError, match="no log parser 'nose'"):
        parse("nose", "")


def test_colours_go_and_text_stays():
    assert without_colour("\x1b[0;32m[ OK ]\x1b[m \x1b[?25la[0]\x1b(B") == "[ OK ] a[0]"


def test_the_command_prints_statuses_and_refuses_in_one_sentence(tmp_path, capsys):
    main(["cargo", str(FIXTURES / "cargo/honest.log")])
    assert json.loads(capsys.readouterr().out) == WANTED["cargo/honest.log"]
    whole = (FIXTURES / "cargo/honest.log").read_text()
    (tmp_path / "cut.log").write_text(whole[: len(whole) // 2])
    for name, fault in (
        ("cut.log", "says nothing of the tests: "),
        ("none.log", "cannot be read: No such file"),
    ):
        with pytest.raises(UserError, match=f"{name} {fault}") as error:
            main(["cargo", str(tmp_path / name)])
        assert "\n" not in str(error.value)
