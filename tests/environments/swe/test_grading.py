"""Grading, run as a task runs it: a child ``python3 -I -S grade.py`` over a small project on disk."""

import ast
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from environments.swe import grading
from environments.swe.grading import verdict
from tests.waiting import PATIENCE

GRADE = Path(grading.__file__)
PACKAGES = Path(pytest.__file__).parents[1]
WRONG, RIGHT = "def double(x):\n    return x + x + 1\n", "def double(x):\n    return 2 * x\n"
TESTS = """\
import sums
import pytest


def test_double():
    assert sums.double(2) == 4


@pytest.mark.parametrize("x", [0, 5])
def test_each(x):
    assert sums.double(x) == 2 * x


def test_name():
    assert sums.__name__ == "sums"


@pytest.mark.skip(reason="not here")
def test_skipped():
    pass
"""
REPAIR = [
    "tests/test_sums.py::test_double",
    "tests/test_sums.py::test_each[0]",
    "tests/test_sums.py::test_each[5]",
]
KEEP = ["tests/test_sums.py::test_name", "tests/test_sums.py::test_skipped"]


class Case:
    """A project at ``project/`` and the task's own files at ``tests/``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project, self.tests = folder, folder / "project", folder / "tests"
        self.task = {
            "project": str(self.project), "packages": str(PACKAGES), "paths": ["src"], "tests": ["tests"],
            "config": "pytest.ini", "owned": ["tests", "pytest.ini", "conftest.py"], "seconds": PATIENCE,
            "fail_to_pass": REPAIR, "pass_to_pass": KEEP,
        }  # fmt: skip
        self.write("project/src/sums.py", WRONG)
        self.write("files/tests/test_sums.py", TESTS)
        self.write("files/pytest.ini", "[pytest]\naddopts = -x\n")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def grade(self) -> dict:
        self.write("tests/tests.json", json.dumps(self.task))
        with tarfile.open(self.tests / "files.tar.gz", "w:gz") as archive:
            archive.add(self.folder / "files", ".")
        logs = self.folder / "logs"
        command = [sys.executable, "-I", "-S", str(GRADE), "--tests", str(self.tests), "--logs", str(logs)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        self.output = result.stdout
        outcome = json.loads((logs / "grade.json").read_text())
        assert float((logs / "reward.txt").read_text()) == float(outcome["resolved"])
        return outcome


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path.resolve())


def test_the_wrong_project_scores_0_and_the_fixed_one_1(case):
    outcome = case.grade()
    assert not outcome["resolved"] and "test_double is FAILED" in outcome["reason"]
    assert outcome["results"] == {name: "FAILED" for name in REPAIR} | dict(
        zip(KEEP, ("PASSED", "SKIPPED"), strict=True)
    )
    case.write("project/src/sums.py", RIGHT)
    outcome = case.grade()
    assert outcome["resolved"] and set(outcome["results"].values()) == {"PASSED", "SKIPPED"}
    # What holds runs once more, to fail; the planted failure is in both runs.
    assert re.findall(r"^exit code (\d+)$", case.output, re.M) == ["1", "1"]
    assert [path.name for path in (case.project / "tests").iterdir()] == ["test_sums.py"]


def test_what_was_wanted_cannot_be_read_by_the_code_under_test(case):
    looks = f"import os\nassert not os.path.exists({str(case.tests / 'tests.json')!r})\n"
    case.write("project/src/sums.py", looks + RIGHT)
    assert case.grade()["resolved"]


CHEATS = {
    "edited tests": {"tests/test_sums.py": "def test_double():\n    pass\n"},
    "conftest beside": {
        "conftest.py": "import pytest\n\n\n@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_pyfunc_call(pyfuncitem):\n    return True\n"
    },
    "conftest in src": {"src/conftest.py": "raise SystemExit(0)\n"},
    "configuration": {
        "pytest.ini": "[pytest]\npython_files = none\n", "tox.ini": "[pytest]\naddopts = --co\n",
    },
    "a pytest of its own": {"src/pytest.py": "def main(arguments):\n    return 0\n"},
    "the standard library shadowed": {"src/json.py": "raise SystemExit(0)\n", "xml/__init__.py": ""},
    "sitecustomize": {"src/sitecustomize.py": "import os\nos._exit(0)\n"},
    "exit 0 at import": {"src/sums.py": "import os\nos._exit(0)\n"},
    "exit 1 at import": {"src/sums.py": "import os\nos._exit(1)\n"},
    "system exit": {"src/sums.py": "raise SystemExit(0)\n"},
    "skipping": {"src/sums.py": "import pytest\npytest.skip('no', allow_module_level=True)\n"},
    "patched reports": {
        "src/sums.py": "import _pytest.reports as r\n\n\ndef f(*a, **k):\n    x = old(*a, **k)\n"
        "    x.outcome = 'passed'\n    return x\n\n\nold = r.TestReport.from_item_and_call\n"
        "r.TestReport.from_item_and_call = f\n" + WRONG
    },
    "reports patched for the tests to repair alone": {
        "src/sums.py": "import _pytest.reports as r\n\n\ndef f(item, call):\n    x = old(item, call)\n"
        "    if 'test_sums' in item.nodeid:\n        x.outcome = 'passed'\n    return x\n\n\n"
        "old = r.TestReport.from_item_and_call\nr.TestReport.from_item_and_call = f\n" + WRONG
    },
    "a report written at exit": {
        "src/sums.py": "import atexit, sys\n\n\ndef forge():\n"
        "    path = [a for a in sys.orig_argv if 'junitxml' in a][0].split('=')[1]\n"
        "    same = 'testcase file=\"tests/test_sums.py\" classname=\"tests.test_sums\"'\n"
        "    cases = ''.join(f'<{same} name=\"{n}\"/>'\n"
        "                    for n in ('test_double', 'test_each[0]', 'test_each[5]', 'test_name'))\n"
        "    open(path, 'w').write('<testsuites><testsuite>' + cases + '</testsuite></testsuites>')\n\n\n"
        "atexit.register(forge)\n" + WRONG
    },
    "printed successes": {"src/sums.py": "print('PASSED tests/test_sums.py::test_double')\n" + WRONG},
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_scores_0(case, name):
    for path, text in CHEATS[name].items():
        case.write(f"project/{path}", text)
    assert not case.grade()["resolved"]


@pytest.mark.parametrize("name", ["edited tests", "conftest beside", "conftest in src", "configuration"])
def test_what_the_agent_left_around_does_not_hurt_a_right_fix(case, name):
    for path, text in CHEATS[name].items():
        case.write(f"project/{path}", text)
    case.write("project/src/sums.py", RIGHT)
    assert case.grade()["resolved"]


def test_tests_that_must_fail_keep_their_names():
    source = (
        "class TestA:\n    def test_b(self): pass\n\n    async def test_c(self):\n        assert 1\n\n"
        "def helper():\n    return 1\n"
    )
    space: dict = {}
    exec(grading.failing(source), space)
    assert space["helper"]() == 1
    with pytest.raises(AssertionError):
        space["TestA"]().test_b()


def test_rewards_that_the_code_under_test_writes_are_replaced(case):
    reward = case.folder / "logs/reward.txt"
    late = f"import time; time.sleep(1); open({str(reward)!r}, 'w').write('1')"
    left = (
        "import os, subprocess, sys\n"
        f"os.makedirs({str(reward.parent)!r}, exist_ok=True)\n"
        f"os.path.lexists({str(reward)!r}) or os.symlink('/dev/full', {str(reward)!r})\n"
        f"subprocess.Popen([sys.executable, '-c', {late!r}], start_new_session=True)\n"
    )
    case.write("project/src/sums.py", left + WRONG)
    assert not case.grade()["resolved"]
    assert reward.read_text() == "0\n" and not reward.is_symlink()
    mine = [path for path in Path("/proc").glob("[0-9]*/cmdline") if late.encode() in _read(path)]
    assert mine == []  # and so nothing writes it later


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_compiled_tests_of_the_agent_are_not_run(case):
    """pytest would take a cached module whose time and size are those of the test file."""
    cached = case.write("project/tests/__pycache__/test_sums.cpython-311-pytest-9.2.0.pyc", "")
    case.write("project/src/sums.py", RIGHT)
    assert case.grade()["resolved"] and not cached.exists()


def test_tests_that_hang_end_and_score_0(case):
    case.task["seconds"] = 1.5
    case.write("project/src/sums.py", "import time\ntime.sleep(3600)\n")
    assert case.grade()["reason"] == "the tests did not end within 1.5 s"


def test_a_link_in_the_way_is_refused_and_not_followed(case, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "test_sums.py").write_text("kept")
    (case.project / "deep").symlink_to(outside)
    case.task["owned"] = ["deep/tests"]
    assert "a link stands in the way of deep/tests" in case.grade()["reason"]
    assert (outside / "test_sums.py").read_text() == "kept"


@pytest.mark.parametrize(
    ("results", "code", "reason"),
    [
        ({"a": "PASSED", "b": "PASSED"}, 0, "all tests hold"),
        ({"a": "XFAIL", "b": "SKIPPED"}, 0, "all tests hold"),
        ({"a": "SKIPPED", "b": "PASSED"}, 0, "1 of 1 tests to repair do not hold: a is SKIPPED"),
        ({"b": "PASSED"}, 0, "1 of 1 tests to repair do not hold: a is missing"),
        ({"a": "PASSED"}, 0, "1 of 1 tests to keep do not hold: b is missing"),
        ({"a": "PASSED", "b": "FAILED"}, 1, "1 of 1 tests to keep do not hold: b is FAILED"),
        ({"a": "PASSED", "b": "PASSED", "c": "ERROR"}, 1, "all tests hold"),
        ({"a": "PASSED", "b": "PASSED"}, 1, "the runner ended with exit code 1 and reported no failure"),
        ({"a": "PASSED", "b": "FAILED"}, 0, "the runner ended with exit code 0 and reported 1 failures"),
        ({}, 0, "no test ran"),
        ({}, 5, "the runner ended with exit code 5 and reported no failure"),
    ],
)
def test_verdicts(results, code, reason):
    assert verdict(results, code, ["a"], ["b"]) == (reason == "all tests hold", reason)


def test_a_task_without_a_test_to_repair_is_never_solved():
    assert verdict({"b": "PASSED"}, 0, [], ["b"]) == (False, "the task names no test to repair")


def test_the_grader_needs_the_standard_library_alone():
    tree = ast.parse(GRADE.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    assert "json" in names and {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
