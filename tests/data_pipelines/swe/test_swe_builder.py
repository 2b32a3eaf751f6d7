"""The builder on a real small project, with real tests in a real sandbox; the index is not asked."""

import asyncio
import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe import build, candidates, running
from data_pipelines.task_building.swe.build import of_pair
from data_pipelines.task_building.swe.pair import asked, make_pair
from data_pipelines.task_building.swe.projects import PROJECTS
from data_pipelines.task_building.swe.running import Outcome, Runner
from environments.harbor.task import load_task
from environments.swe.history import faults
from pipeline.errors import UserError
from pipeline.recipe.data import SweSection
from tests.data_pipelines.swe.conftest import NEW, NEW_TESTS, OLD
from tests.data_pipelines.swe.packages import pytest_lines
from tests.sandboxes import backend_or_skip, image_cache
from tests.waiting import PATIENCE

SECTION = SweSection(projects=["shapes"])
AREA, LABEL = "tests/test_shapes.py::TestArea::test_negative", "tests/test_shapes.py::test_label"
FLAKY = "tests/test_shapes.py::test_flaky"


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    return backend_or_skip(image_cache(tmp_path_factory))


@pytest.fixture
def lines(monkeypatch):
    """Images get pytest from the packages of this Python instead of the index."""

    async def build_image(self, folder):
        (folder / "Dockerfile").write_text(pytest_lines(folder))
        return await self._backend.build(folder)

    monkeypatch.setattr(Runner, "_build", build_image)


def collect(project, scratch, backend, section=SECTION) -> tuple[list, Counter, Runner]:
    async def all_of():
        runner = Runner(backend, project, scratch / "runs")
        pair = make_pair(project, *project.releases, scratch)
        return [found async for found in of_pair(pair, section, runner, 0, dropped.append)], runner

    dropped: list[str] = []
    found, runner = asyncio.run(all_of())
    return found, Counter(dropped), runner


def grade(folder: Path, fixed: bool, tmp_path: Path) -> dict:
    """Grade a written task on the host: its project, with or without its gold patch."""
    project = tmp_path / ("fixed" if fixed else "given")
    shutil.copytree(folder / "environment/project", project)
    shutil.copytree(folder / "environment/git", project / ".git")
    if fixed:
        patch = (folder / "solution/gold.patch").resolve()
        subprocess.run(["git", "apply", str(patch)], cwd=project, check=True, timeout=PATIENCE)
    tests = project.with_suffix(".tests")
    shutil.copytree(folder / "tests", tests)
    asked_for = json.loads((tests / "tests.json").read_text())
    asked_for |= {"project": str(project.resolve()), "packages": str(Path(pytest.__file__).parents[1])}
    (tests / "tests.json").write_text(json.dumps(asked_for))
    command = [
        sys.executable,
        "-I",
        "-S",
        str(tests / "grade.py"),
        "--tests",
        str(tests),
        "--logs",
        str(tests),
    ]
    subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True)
    return json.loads((tests / "grade.json").read_text())


@pytest.mark.slow
def test_two_releases_become_tasks(shapes, tmp_path, backend, lines):
    found, dropped, runner = collect(shapes, tmp_path / "scratch", backend)
    kinds = sorted(candidate.draft["kind"] for candidate in found)
    assert kinds == ["release", "reversal", "reversal"] and not dropped
    for candidate in found:
        folder = tmp_path / candidate.name
        folder.mkdir()
        candidate.write(folder)
        check_folder(folder, candidate)
        given, fixed = (grade(folder, fixed, folder.with_suffix(".graded")) for fixed in (False, True))
        assert not given["resolved"] and "tests to repair do not hold" in given["reason"]
        assert fixed["resolved"], fixed
    # Everything is kept: a second time nothing runs.
    started = []
    backend.start, original = lambda *arguments: started.append(arguments), backend.start
    try:
        again, _, _ = collect(shapes, tmp_path / "scratch", backend)
    finally:
        backend.start = original
    assert [candidate.name for candidate in again] == [candidate.name for candidate in found] and not started


def check_folder(folder: Path, candidate) -> None:
    task = load_task(folder)
    config = tomllib.loads((folder / "task.toml").read_text())
    assert config["task"]["name"] == f"glm5-pipeline/{candidate.name}" and task.config.verifier.separate
    assert config["metadata"]["heldout"] is False and config["metadata"]["project"] == "shapes"
    wanted = json.loads((folder / "tests/tests.json").read_text())
    both = {"release": {AREA, LABEL}, "reversal": {AREA} if "width < 0" in gold(folder) else {LABEL}}
    assert set(wanted["fail_to_pass"]) == both[candidate.draft["kind"]]
    assert "tests/test_shapes.py::test_scale" in wanted["pass_to_pass"]
    assert FLAKY not in wanted["fail_to_pass"] + wanted["pass_to_pass"]
    instruction = (folder / "instruction.md").read_text()
    for test in wanted["fail_to_pass"]:
        assert test.partition("::")[2] in instruction
    assert "casefold" not in instruction and "width < 0" not in instruction
    copy = folder / "environment/project"
    agents = (copy / "tests/test_shapes.py").read_text()
    assert not [test for test in wanted["fail_to_pass"] if f"def {test.rpartition('::')[2]}(" in agents]
    assert "Sides below zero" not in (copy / "CHANGES.rst").read_text()
    assert not (copy / "AGENTS.md").exists() and not (copy / ".git").exists()
    dockerfile = (folder / "environment/Dockerfile").read_text()
    assert dockerfile.startswith("FROM python:3.11-slim-bookworm\n") and "pytest==" in dockerfile
    assert (folder / "tests/grade.py").read_bytes() == running.GRADER.read_bytes()


def gold(folder: Path) -> str:
    return (folder / "solution/gold.patch").read_text()


@pytest.mark.slow
def test_the_copy_of_a_task_shows_no_fix_and_a_planted_one_is_rejected(
    shapes, tmp_path, backend, lines, monkeypatch
):
    found, _, _ = collect(shapes, tmp_path / "scratch", backend, SweSection(kinds=["release"]))
    folder = tmp_path / "task"
    folder.mkdir()
    found[0].write(folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder / "environment/project", copy)
    shutil.copytree(folder / "environment/git", copy / ".git")
    assert faults(copy, gold(folder)) == []
    planted = next((tmp_path / "scratch/releases").glob("shapes-1.0-*")) / "NEWS"
    planted.write_text('next:\n        raise ValueError("a side is negative")\n')
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(Rejected, match="the fix can be read: NEWS has a line of the fix"):
        found[0].write(again)


def test_a_flaky_test_is_thrown_out_and_makes_no_task():
    same = {"a": "PASSED", "b": "PASSED", "c": "SKIPPED"}
    flickering = Outcome(({**same, "f": "PASSED"}, {**same, "f": "FAILED"}, {**same, "f": "PASSED"}))
    assert flickering.flaky == {"f"} and flickering.stable == same
    broken = Outcome(tuple({**same, "b": "FAILED", "f": status} for status in ("FAILED", "FAILED", "FAILED")))
    assert asked(flickering, broken).repair == ["b"] and asked(flickering, broken).keep == ["a", "c"]
    sometimes = Outcome(({**same, "b": "FAILED"}, same, {**same, "b": "FAILED"}))
    assert asked(Outcome((same,) * 3), sometimes).repair == []
    missing = Outcome(({"a": "PASSED", "c": "SKIPPED"},) * 3)
    assert asked(Outcome((same,) * 3), missing).repair == ["b"]


@pytest.mark.slow
def test_a_hunk_that_only_flaky_tests_notice_is_counted(shapes, tmp_path, backend, lines):
    """The tests of the new release without those that check the changes: what is left sometimes fails."""
    only_flaky = "import shapes\n" + NEW_TESTS[NEW_TESTS.index("\n\ndef test_flaky") :]
    scratch = tmp_path / "scratch"
    pair = make_pair(shapes, *shapes.releases, scratch)
    (pair.new_tree / "tests/test_shapes.py").write_text(only_flaky + "\n\ndef test_one():\n    pass\n")
    pair = make_pair(shapes, *shapes.releases, scratch)

    async def reasons():
        runner = Runner(backend, shapes, scratch / "runs")
        fixed = await runner.run(pair.new_tree, pair.tests)
        assert fixed.flaky == {FLAKY}
        hunks = build.reversals({"src/shapes.py": OLD}, {"src/shapes.py": NEW})
        return [await build._try(pair, hunk, fixed, runner) for hunk in hunks]

    assert set(asyncio.run(reasons())) == {"no test notices the hunk"}


def test_candidates_name_an_unknown_project(tmp_path):
    with pytest.raises(UserError, match="no project 'nosuch' .*known: sqlparse"):
        next(candidates(SweSection(projects=["nosuch"]), tmp_path, 0))
    assert list(candidates(SweSection(), tmp_path, 0)) == []


@pytest.mark.slow
def test_candidates_are_lazy_and_can_be_left(shapes, tmp_path, backend, lines, monkeypatch):
    monkeypatch.setitem(PROJECTS, "shapes", shapes)
    found = candidates(SECTION, tmp_path / "scratch", 0, backend)
    assert next(found).name == "shapes-1-1-release"
    found.close()
    dropped = Counter()
    section = SweSection(projects=["shapes"], reversals=1)
    assert len(list(candidates(section, tmp_path / "scratch", 0, backend, dropped))) == 2


def test_an_error_of_the_index_reaches_the_caller(shapes, tmp_path, backend, monkeypatch):
    monkeypatch.setitem(PROJECTS, "shapes", shapes)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="shapes 1.0 could not be fetched"):
        next(candidates(SECTION, tmp_path / "elsewhere", 0, backend))
