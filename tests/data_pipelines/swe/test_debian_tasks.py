"""Tasks from Debian patches: of a synthetic package in a real sandbox, and of the real jinja2."""

import asyncio
import json
import tomllib
from collections import Counter
from itertools import islice

import pytest

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe import candidates, debian, running
from data_pipelines.task_building.swe.apt_sources import AptSources
from data_pipelines.task_building.swe.debian import of_package
from data_pipelines.task_building.swe.folder import difficulty
from data_pipelines.task_building.swe.hunks import unified
from data_pipelines.task_building.swe.projects import PROJECTS
from data_pipelines.task_building.swe.running import Runner
from environments.harbor.task import load_task
from pipeline.errors import UserError
from pipeline.recipe.data import SweSection
from tests.data_pipelines.swe.debian_package import (
    CODE,
    FOLDED,
    LABEL_TESTS,
    PATCHES,
    SERIES,
    TESTS,
    pack_patches,
)
from tests.data_pipelines.swe.packages import pytest_lines
from tests.data_pipelines.swe.test_swe_builder import grade
from tests.sandboxes import backend_or_skip
from tests.waiting import PATIENCE

AREA, LABEL = "tests/test_shapes.py::TestArea::test_negative", "tests/test_shapes.py::test_label"
SCALE = "tests/test_shapes.py::test_scale"
IDLE = "Subject: Nothing is mended\n---\n" + unified(
    {CODE: FOLDED, TESTS: LABEL_TESTS},
    {CODE: FOLDED + "\n\nUNUSED = 1\n", TESTS: LABEL_TESTS + "\n\ndef test_it():\n    assert shapes\n"},
)
NOT_APPLIED = "a Debian patch does not apply: it and those after it are left out"


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """Images get pytest from the packages of this Python instead of the index."""

    async def build_image(self, folder):
        (folder / "Dockerfile").write_text(pytest_lines(folder))
        return await self._backend.build(folder)

    monkeypatch.setattr(Runner, "_build", build_image)
    return real_backend(tmp_path)


def real_backend(tmp_path):
    return backend_or_skip(tmp_path / "images")


def collect(project, package, scratch, backend) -> tuple[list, list[str]]:
    """The candidates, and why other patches are none."""

    async def all_of():
        runner = Runner(backend, project, scratch / "runs")
        source = of_package(project, package, runner, AptSources(scratch / "apt"), scratch, dropped.append)
        try:
            async for candidate in source:
                found.append(candidate)
        except Rejected as reason:
            dropped.append(str(reason))

    found, dropped = [], []
    asyncio.run(all_of())
    return found, dropped


@pytest.mark.slow
def test_patches_with_tests_become_tasks(shapes, tmp_path, backend):
    patches = {**PATCHES, "idle.patch": IDLE}
    package = pack_patches(tmp_path / "scratch/downloads", shapes, SERIES + "idle.patch", patches)
    (*found, idle), dropped = collect(shapes, package, tmp_path / "scratch", backend)
    assert [candidate.name for candidate in found] == ["shapes-1-0-debian-2", "shapes-1-0-debian-4"]
    with pytest.raises(Rejected, match="no test fails before and passes after"):
        idle.write(tmp_path / "idle")
    assert dropped == ["a Debian patch changes no code", "a Debian patch changes no test"]
    origin = "shapes 1.0; patch negative.patch of Debian's shapes 1.0-1; Origin: upstream, "
    assert found[0].provenance.startswith(origin + "https://example.org/commit/1; Bug-Debian: https://bugs")
    said = {
        "shapes-1-0-debian-2": ("# shapes: Refuse a side below zero", "Such a side has no length.", AREA),
        "shapes-1-0-debian-4": ("# shapes: Labels that differ in case alone are the same", "", LABEL),
    }
    for candidate in found:
        folder = tmp_path / candidate.name
        folder.mkdir()
        candidate.write(folder)
        check_folder(folder, *said[candidate.name])
        given, fixed = (grade(folder, fixed, folder.with_suffix(".graded")) for fixed in (False, True))
        assert not given["resolved"] and "tests to repair do not hold" in given["reason"]
        assert fixed["resolved"], fixed


def check_folder(folder, title: str, body: str, repaired: str) -> None:
    load_task(folder)
    metadata = tomllib.loads((folder / "task.toml").read_text())["metadata"]
    assert metadata["kind"] == "debian" and metadata["difficulty"] == "easy"
    wanted = json.loads((folder / "tests/tests.json").read_text())
    assert wanted["fail_to_pass"] == [repaired] and SCALE in wanted["pass_to_pass"]
    text = (folder / "instruction.md").read_text()
    assert text.startswith(title + "\n") and body in text and repaired.partition("::")[2] in text
    patch = (folder / "solution/gold.patch").read_text()
    assert CODE in patch and "tests/" not in patch
    for hidden in ("example.org", "bugs.debian.org", "casefold", "width < 0", "+++", "@@"):
        assert hidden not in text
    copy = folder / "environment/project"
    assert f"def {repaired.rpartition('::')[2]}(" not in (copy / "tests/test_shapes.py").read_text()
    assert not (copy / "debian").exists() and not list(copy.rglob("*.patch"))


@pytest.mark.parametrize(
    ("patches", "reasons"),
    [
        (
            ("9-words.patch", "1-fold.patch"),  # this one builds upon the others
            ["a Debian patch changes no code", NOT_APPLIED],
        ),
        (("silent.patch",), ["a Debian patch does not say what it is for"]),
    ],
)
def test_why_patches_make_no_task(shapes, tmp_path, patches, reasons):
    """Found out before anything is run."""
    silent = PATCHES["negative.patch"].partition("diff --git")
    texts = {**PATCHES, "silent.patch": "Last-Update: 2026-01-01\n" + "".join(silent[1:])}
    package = pack_patches(tmp_path / "scratch/downloads", shapes, "\n".join(patches), texts)
    assert collect(shapes, package, tmp_path / "scratch", None) == ([], reasons)


def test_the_kind_is_left_out_where_apt_is_not_to_be_had(shapes, tmp_path, monkeypatch):
    monkeypatch.setitem(PROJECTS, "shapes", shapes)
    package = pack_patches(tmp_path / "elsewhere", shapes)
    monkeypatch.setitem(debian.PACKAGES, "shapes", (package, package))
    monkeypatch.setenv("PATH", str(tmp_path))
    section, dropped = SweSection(projects=["shapes"], kinds=["debian"]), Counter()
    assert list(candidates(section, tmp_path / "scratch", 0, object(), dropped)) == []
    assert dropped == {"Debian sources are not to be had here: there is no apt-get": 2}


def test_the_difficulty_of_a_fix():
    def of(lines: int) -> str:
        old = "".join(f"x{number} = 1\n" for number in range(lines // 2))
        return difficulty(unified({"a.py": old}, {"a.py": old.replace("= 1", "= 2")}))

    assert [of(lines) for lines in (2, 6, 8, 30, 32)] == ["easy", "easy", "medium", "medium", "hard"]


@pytest.mark.slow
def test_patches_of_the_real_jinja2_are_tasks(tmp_path, monkeypatch):
    """As measured by hand: a test to repair by the second of the five patches that change code and tests. The
    first mends what no Python that is used here has: it is applied and not tried, which takes its minute.
    """
    unfit, first = debian._unfit, "py3.9-fix-collections-import.patch"
    monkeypatch.setattr(debian, "_unfit", lambda p, s, h: "left" if s.name == first else unfit(p, s, h))
    monkeypatch.setattr(running, "SECONDS", PATIENCE)  # however busy the machine is
    section, dropped = SweSection(projects=["Jinja2"], kinds=["debian"]), Counter()
    backend = real_backend(tmp_path)
    try:
        found = list(islice(candidates(section, tmp_path / "scratch", 0, backend, dropped), 1))
    except UserError as error:
        if "does not answer" not in str(error):
            raise
        pytest.skip(str(error))
    if missing := [reason for reason in dropped if "not to be had" in reason]:
        pytest.skip(missing[0])
    repaired = {
        candidate.draft["patch"]: len(candidate.write.keywords["wanted"].repair) for candidate in found
    }
    assert repaired == {"0001-xmlattr-filter-disallows-keys-with-spaces.patch": 1}
    (folder := tmp_path / "task").mkdir()
    try:
        found[0].write(folder)
    except Rejected as reason:  # Debian's own jinja2 lies below the host's /usr
        assert "another copy of the project has the fix" in str(reason)
    assert all(candidate.heldout for candidate in found)
    assert dropped == {"a Debian patch changes no code": 2, "left": 1}  # of those before the second
