"""The parts of the builder that run nothing: archives, hunks, notes, test functions, instructions."""

import io
import subprocess
import tarfile

import pytest

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe import sdists
from data_pipelines.task_building.swe.hunks import behaviour, reversals, unified
from data_pipelines.task_building.swe.instruction import REVERSAL, instruction, release_note
from data_pipelines.task_building.swe.project import code_files, release_tree
from data_pipelines.task_building.swe.projects import PROJECTS
from data_pipelines.task_building.swe.running import owned_archive
from data_pipelines.task_building.swe.tests_text import find_functions, without_functions
from pipeline.errors import UserError
from tests.data_pipelines.swe.conftest import CHANGES, NEW, NEW_TESTS, OLD
from tests.waiting import PATIENCE


def test_a_release_is_unpacked_and_cleaned(shapes, tmp_path):
    tree = release_tree(shapes, shapes.releases[1], tmp_path / "scratch")
    names = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    assert names == ["CHANGES.rst", "src/shapes.py", "tests/test_shapes.py"]
    assert code_files(shapes, tree) == {"src/shapes.py": NEW}
    assert owned_archive(shapes, tree) == owned_archive(shapes, tree)
    with tarfile.open(fileobj=io.BytesIO(owned_archive(shapes, tree))) as archive:
        assert archive.getnames() == ["tests/test_shapes.py"]


def test_a_changed_archive_is_refused(shapes, tmp_path):
    archive = tmp_path / "scratch/downloads/shapes-1.0.tar.gz"
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(UserError, match=r"shapes-1.0.tar.gz has SHA-256 \w+, expected is \w+: delete it"):
        release_tree(shapes, shapes.releases[0], tmp_path / "scratch")


def archive_of(tmp_path, *members: tarfile.TarInfo):
    path = tmp_path / "evil-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, size: int = 1, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.linkname = size, kind, link
    return entry


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([member("../outside")], "cannot be unpacked"),
        ([member("/outside")], "cannot be unpacked|does not hold one folder"),
        ([member("a/x"), member("b/x")], "does not hold one folder at its top"),
        ([member("file")], "does not hold one folder at its top"),
    ],
)
def test_archives_that_lead_out_or_are_no_project_are_refused(tmp_path, members, said):
    with pytest.raises(UserError, match=said):
        sdists.unpack(archive_of(tmp_path, *members), tmp_path / "target/evil")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "target/outside").exists()


def test_links_of_an_archive_are_left_out(tmp_path):
    link = member("a/link", 0, tarfile.SYMTYPE, "/etc/passwd")
    sdists.unpack(archive_of(tmp_path, member("a/x"), link), tmp_path / "evil")
    assert [path.name for path in (tmp_path / "evil").iterdir()] == ["x"]


def test_only_hunks_that_change_behaviour_are_taken_back():
    """The docstring and the version do nothing; of the others, two stand so close that they are one hunk."""
    found = list(reversals({"shapes.py": OLD}, {"shapes.py": NEW}))
    assert len(found) == 2
    for reversal in found:
        assert behaviour(reversal.broken) not in (behaviour(OLD), behaviour(NEW), None)
    without_perimeter = [found for found in found if "perimeter" not in found.broken]
    assert len(without_perimeter) == 1 and "a side is negative" in without_perimeter[0].broken


def test_patches_apply(tmp_path):
    old = {"a.py": "x = 1\ny = 2", "gone.py": "z\n", "same.py": "s\n"}
    new = {"a.py": "x = 1\ny = 3\n", "new/b.py": "b\n", "same.py": "s\n"}
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    patch = unified(old, new)
    assert "same.py" not in patch
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, check=True, timeout=PATIENCE)
    left = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.py")}
    assert left == new


@pytest.mark.parametrize(
    ("changelog", "version", "note"),
    [
        (CHANGES, "1.1", "- Sides below zero are refused.\n- Labels that differ in case alone are the same."),
        (CHANGES, "1", "- First release."),
        (CHANGES, "1.2", None),
        (
            "# Log\n\n## [3.9.0] - 2025\n\n### Fixed\n\n* One (#1).\n\n## [3.8.2] - 2024\n\n* Two\n",
            "3.9",
            "### Fixed\n\n* One (#1).",
        ),
        (
            "Release 0.5.5 (Dec 19)\n-----\n\nBug Fixes\n\n* Fix 0.5.4 things\n\n\nRelease 0.5.4\n----\n",
            "0.5.5",
            "Bug Fixes\n\n* Fix 0.5.4 things",
        ),
        ("v8.0.2 (2026)\n====\n\n- Add.\n\nv8.0.1\n===\n- B.\n", "8.0.2", "- Add."),
        (
            "Version 3.1.3\n---\n\nReleased\n\n-   Fix it.\n\nVersion 3.1.2\n",
            "3.1.3",
            "Released\n\n-   Fix it.",
        ),
        ("1.0\n---\n\n0.9\n---\n- x y z\n", "1.0", None),
    ],
)
def test_the_note_of_a_release(changelog, version, note):
    assert release_note(changelog, version) == note


def test_functions_behind_test_ids():
    file = "tests/test_shapes.py"
    ids = [f"{file}::test_area", f"{file}::TestArea::test_negative", f"{file}::test_area[x]"]
    functions = find_functions(ids, {file: NEW_TESTS})
    assert [function.name for function in functions] == ["TestArea::test_negative", "test_area"]
    assert functions[0].docstring == "A negative side is refused."
    assert functions[0].source.startswith("def test_negative(self):\n    ")
    assert find_functions([f"{file}::test_gone"], {file: NEW_TESTS}) is None


def test_functions_are_taken_out_whole():
    text = without_functions(NEW_TESTS, {"TestArea::test_negative", "test_area", "test_elsewhere"})
    assert "class TestArea" not in text and "test_area" not in text and "def test_scale" in text
    compile(text, "test", "exec")
    kept = without_functions("class A:\n    x = 1\n\n    def test_a(self):\n        pass\n", {"A::test_a"})
    assert "x = 1" in kept and "test_a" not in kept
    compile(kept, "test", "exec")


def test_an_instruction_never_holds_a_line_of_the_fix(shapes):
    functions = find_functions(["t.py::test_label"], {"t.py": NEW_TESTS})
    fix = unified({"src/shapes.py": OLD}, {"src/shapes.py": NEW})
    text = instruction(REVERSAL, shapes, functions, fix, version="1.0")
    assert "`test_label` in `t.py`" in text and "casefold" not in text
    assert "/app/shapes" in text and "PYTHONPATH=src python3 -m pytest tests" in text
    leaking = REVERSAL + 'Write `raise ValueError("a side is negative")`.\n'
    with pytest.raises(Rejected, match="would give the fix"):
        instruction(leaking, shapes, functions, fix, version="1.0")


def test_declared_projects_are_complete():
    assert PROJECTS["Jinja2"].heldout and not PROJECTS["sqlparse"].heldout
    for project in PROJECTS.values():
        assert len(project.releases) >= 2 and project.licence in ("MIT", "BSD-3-Clause"), project.name
        assert all(len(release.sha256) == 64 for release in project.releases)
        assert all("==" in pin for pin in project.pins)
    checksums = [release.sha256 for project in PROJECTS.values() for release in project.releases]
    assert len(set(checksums)) == len(checksums)


@pytest.mark.slow
def test_a_source_distribution_comes_from_the_index_without_running_its_code(tmp_path):
    project = PROJECTS["xmltodict"]
    try:
        tree = release_tree(project, project.releases[-1], tmp_path)
    except UserError as error:
        if "does not answer" not in str(error):
            raise
        pytest.skip("the package index does not answer")
    assert "def parse" in code_files(project, tree)["xmltodict.py"]


def test_what_the_index_does_not_have_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="nosuch 1.0 could not be fetched .*put nosuch-1.0.tar.gz into"):
        sdists.fetch("nosuch", "1.0", "0" * 64, tmp_path)
    assert not list(tmp_path.glob("nosuch*"))
