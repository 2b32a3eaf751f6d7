"""Grade a fix by the project's own tests: which ran, which passed, and is that what ``tests.json`` asks for.

It needs the standard library alone: a task carries it word for word as ``tests/grade.py``, and its
``test.sh`` calls ``python3 -I -S /tests/grade.py``, so every harness grades alike. The agent may have changed
anything in the project (that alone is carried into the clean sandbox where this runs), so: test files and
configuration are put back, compiled files and what else steers an interpreter go, the project comes last on
the path, and one test that must fail runs among the others: code that makes the runner report successes makes
that one succeed, too. Tests that hold run once more with a failure at their beginning: one that holds all the
same was made to. Code under test shares a process with the runner, so what tells the two runs apart by
reading the tests' own text is not caught.
"""

import argparse
import ast
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PASSED, FAILED, SKIPPED, ERROR, XFAIL = "PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"
WORSE = (PASSED, XFAIL, SKIPPED, FAILED, ERROR)  # a test that is reported twice counts as the worse
LONGEST_REPORT = 16 * 2**20  # bytes
SHOWN_OUTPUT = 20_000  # characters
# Files that steer a runner or an interpreter; those that are not the task's own go.
STEERING = ("conftest.py", "sitecustomize.py", "usercustomize.py")

# Interpreter, then installed packages, then the project: nothing of the project can stand in for the runner.
_START = """\
import sys
packages, paths, arguments = sys.argv[1], sys.argv[2].split(":"), sys.argv[3:]
sys.path += [packages, *paths]
import pytest
sys.exit(pytest.main(arguments))
"""


class LogRejected(ValueError):
    """A log or report that is no evidence of what the tests did; the message says why in one sentence."""


def merge(results: dict[str, str], test: str, status: str) -> None:
    """Add a status; of two for one test the worse stays."""
    results[test] = max(results.get(test, status), status, key=WORSE.index)


def parse_junit(report: str) -> dict[str, str]:
    """Statuses in a JUnit XML report, of pytest (ids as pytest's own node ids), Maven's surefire and others.

    An empty dict is a report that says that no test ran. Raises ``LogRejected``.
    """
    if "<!DOCTYPE" in report or "<!ENTITY" in report:
        raise LogRejected("the report declares entities, which no runner does")
    try:
        root = ElementTree.fromstring(report)
    except ElementTree.ParseError as error:
        raise LogRejected(f"the report is no complete XML ({error})") from None
    if root.tag not in ("testsuites", "testsuite"):
        raise LogRejected(f"the report is no JUnit report: its root is {root.tag}")
    results: dict[str, str] = {}
    for case in root.iter("testcase"):
        merge(results, _junit_id(case), _junit_status(case))
    return results


def _junit_id(case: ElementTree.Element) -> str:
    """pytest gives ``file`` and ``classname`` (dotted file, then classes); others ``classname`` alone."""
    name, owner, file = case.get("name", ""), case.get("classname", ""), case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    if file.endswith(".py") and (owner == module or owner.startswith(module + ".")):
        classes = owner[len(module) + 1 :]
        return "::".join([file, *filter(None, classes.split(".")), name])
    return f"{owner}.{name}" if owner else name


def _junit_status(case: ElementTree.Element) -> str:
    children = {child.tag: child for child in case}
    if "error" in children:
        return ERROR
    if "failure" in children:
        return FAILED
    if "skipped" in children:
        return XFAIL if children["skipped"].get("type") == "pytest.xfail" else SKIPPED
    return SKIPPED if case.get("status") in ("notrun", "disabled") else PASSED  # googletest and ctest


def verdict(
    results: dict[str, str], returncode: int, fail_to_pass: list[str], pass_to_pass: list[str]
) -> tuple[bool, str]:
    """Whether the fix holds, and why.

    Tests to be repaired must be PASSED or XFAIL: skipped or missing is not repaired. Tests to be kept may
    also be SKIPPED. A log whose exit code and statuses disagree is no evidence, nor is one without tests.
    """
    if not fail_to_pass:
        return False, "the task names no test to repair"
    failed = sorted(test for test, status in results.items() if status in (FAILED, ERROR))
    if returncode != 0 and not failed:
        return False, f"the runner ended with exit code {returncode} and reported no failure"
    if returncode == 0 and failed:
        return False, f"the runner ended with exit code 0 and reported {len(failed)} failures"
    if not results:
        return False, "no test ran"
    for kind, tests, accepted in (
        ("repair", fail_to_pass, (PASSED, XFAIL)),
        ("keep", pass_to_pass, (PASSED, XFAIL, SKIPPED)),
    ):
        wrong = [test for test in tests if results.get(test) not in accepted]
        if wrong:
            status = results.get(wrong[0], "missing")
            return False, f"{len(wrong)} of {len(tests)} tests to {kind} do not hold: {wrong[0]} is {status}"
    return True, "all tests hold"


def restore(project: Path, files: Path, owned: list[str]) -> None:
    """Put the task's files into the project: ``owned`` folders and files as they were, nothing that steers.

    Raises ``LogRejected`` where the agent put a link in the way.
    """
    for name in owned:
        target = project / name
        if target.parent.resolve() != target.parent:
            raise LogRejected(f"a link stands in the way of {name}")
        _remove(target)
        source = files / name
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for folder, folders, names in os.walk(project):
        for name in [*folders, *names]:
            path = Path(folder, name)
            compiled = name == "__pycache__" or name.endswith(".pyc")
            if compiled or (name in STEERING and not (files / path.relative_to(project)).is_file()):
                _remove(path)
        folders[:] = [name for name in folders if name != "__pycache__"]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_tests(task: dict, private: Path) -> tuple[dict[str, str], int, str]:
    """Run the task's test files; statuses by test id, exit code (the planted failure taken out) and output.

    ``private`` is a folder for the report and what tests write. Raises ``LogRejected``.
    """
    project = Path(task["project"])
    packages = Path(task.get("packages") or sysconfig.get_path("purelib"))
    nonce = secrets.token_hex(8)
    planted = project / Path(task["tests"][0]) / f"test_{nonce}.py"
    if not planted.parent.is_dir():
        planted = planted.parent.with_name(planted.name)
    planted.write_text(f"def test_{nonce}():\n    raise AssertionError\n")
    report, inside = private / "report.xml", planted.relative_to(project).as_posix()
    config = task.get("config")
    arguments = [
        *task["tests"], inside,
        "-c", str(project / config) if config else os.devnull,
        f"--rootdir={project}", f"--confcutdir={project}", f"--basetemp={private / 'temporary'}",
        "-o", "addopts=", "-o", "junit_family=xunit1", f"--junitxml={report}", "--import-mode=append",
        "-p", "no:cacheprovider", "-q", "--color=no", *task.get("options", []),
    ]  # fmt: skip
    paths = [str(project / path) for path in task["paths"]]
    start = [sys.executable, "-I", "-S", "-B", "-c", _START]
    command = [*start, str(packages), ":".join(paths), *arguments]
    try:
        returncode, output = _run(command, project, private, paths, task["seconds"])
    finally:
        planted.unlink(missing_ok=True)
    print(f"{output}\nexit code {returncode}", flush=True)
    if not report.is_file() or report.stat().st_size > LONGEST_REPORT:
        raise LogRejected(f"the runner ended with exit code {returncode} and left no report")
    results = parse_junit(report.read_text(errors="replace"))
    if results.pop(f"{inside}::test_{nonce}", None) != FAILED or returncode != 1:
        raise LogRejected(
            f"a test that must fail did not (exit code {returncode}): the report is not believed"
        )
    return results, int(any(status in (FAILED, ERROR) for status in results.values())), output


def still_passing(task: dict, files: Path, private: Path) -> list[str]:
    """Of the tests to repair, those that pass although their functions begin with a failure.

    Raises ``LogRejected``.
    """
    project = Path(task["project"])
    restore(project, files, task["owned"])
    names = sorted({test.partition("::")[0] for test in task["fail_to_pass"]})
    for name in names:
        path = project / name
        path.write_text(failing(path.read_text()))
    (private / "report.xml").unlink()
    results, _, _ = run_tests({**task, "tests": names}, private)
    return [test for test in task["fail_to_pass"] if results.get(test) == PASSED]


def failing(source: str) -> str:
    """Python tests with the same names and parameters that all fail at once."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            node.body.insert(0, ast.parse("raise AssertionError").body[0])
    return ast.unparse(tree)


def _run(
    command: list[str], project: Path, private: Path, paths: list[str], seconds: float
) -> tuple[int, str]:
    """Exit code and the end of the output; all that the command started is killed when it ends or is late."""
    with open(private / "output", "w+b") as output:
        _adopt_orphans()
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(private), "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }  # fmt: skip
        process = subprocess.Popen(
            command, cwd=project, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            returncode = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise LogRejected(f"the tests did not end within {seconds:g} s") from None
        finally:
            _kill_children()
        output.seek(max(0, output.tell() - SHOWN_OUTPUT))
        return returncode, output.read().decode(errors="replace")


def _adopt_orphans() -> None:
    """Processes that the tests leave behind become children of this one (Linux: PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _kill_children() -> None:
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        for child in children:
            os.waitpid(int(child), 0)


def grade(task: dict, tests: Path) -> dict:
    """What there is to say of the project as it stands: ``resolved``, ``reason``, ``results`` by test id."""
    project, results = Path(task["project"]), {}
    try:
        with tempfile.TemporaryDirectory(prefix="grade-") as folder:
            private = Path(folder).resolve()
            with tarfile.open(tests / "files.tar.gz") as archive:
                archive.extractall(private / "files", filter="data")
            restore(project, private / "files", task["owned"])
            results, returncode, _ = run_tests(task, private)
            resolved, reason = verdict(results, returncode, task["fail_to_pass"], task["pass_to_pass"])
            if resolved and (forged := still_passing(task, private / "files", private)):
                resolved, reason = False, f"{forged[0]} passes also where it must fail"
    except (LogRejected, OSError, SyntaxError) as error:
        resolved, reason = False, str(error)
    return {"resolved": resolved, "reason": reason, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description="Grade a task and leave the reward for the harness.")
    parser.add_argument("--tests", type=Path, default=Path("/tests"))
    parser.add_argument("--logs", type=Path, default=Path("/logs/verifier"))
    arguments = parser.parse_args()
    task = json.loads((arguments.tests / "tests.json").read_text())
    _remove(arguments.tests / "tests.json")  # the code under test shall not read what is asked for
    outcome = grade(task, arguments.tests)
    arguments.logs.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("grade.json", json.dumps(outcome, indent=1)),
        ("reward.txt", f"{int(outcome['resolved'])}\n"),
    ):
        _remove(arguments.logs / name)  # what the code under test may have left there, links too
        (arguments.logs / name).write_text(text)
    print(outcome["reason"])


if __name__ == "__main__":
    main()
