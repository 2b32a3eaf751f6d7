"""A project without past or future: what ``freshen`` leaves, what ``faults`` finds when it is planted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from environments.swe.history import copies_command, faults, freshen, shown_by
from tests.waiting import PATIENCE

BROKEN = "def area(width, height):\n    return width + height\n"
FIXED = "def area(width, height):\n    return abs(width) * abs(height)\n"
FIX = """\
diff --git a/shapes/area.py b/shapes/area.py
--- a/shapes/area.py
+++ b/shapes/area.py
@@ -1,2 +1,2 @@
 def area(width, height):
-    return width + height
+    return abs(width) * abs(height)
"""
WHO = ("-c", "user.name=A", "-c", "user.email=a@example.org")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *WHO, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout.strip()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "shapes").mkdir(parents=True)
    (folder / "shapes/area.py").write_text(BROKEN)
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "run.log").write_text("kept, though ignored\n")
    return folder


@pytest.fixture
def with_history(project):
    """The fix was made, released and pushed; then someone went back to before it."""
    git(project, "init", "--quiet", "--initial-branch=work")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message=before")
    (project / "shapes/area.py").write_text(FIXED)
    git(project, "commit", "--quiet", "--all", "--message=the fix")
    git(project, "tag", "v2")
    git(project, "branch", "later")
    git(project, "remote", "add", "origin", "https://example.org/shapes.git")
    git(project, "gc", "--quiet")
    git(project, "reset", "--quiet", "--hard", "HEAD~1")
    return project


def test_one_commit_is_left_and_it_is_the_folder(with_history):
    freshen(with_history)
    assert faults(with_history, FIX) == []
    assert git(with_history, "rev-list", "--all", "--count") == "1"
    assert git(with_history, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(with_history, "remote") == git(with_history, "reflog") == git(with_history, "tag") == ""
    assert git(with_history, "ls-files").split() == [".gitignore", "run.log", "shapes/area.py"]
    assert "abs(width)" not in git(with_history, "grep", "-h", "return", "HEAD")


def test_the_same_files_make_the_same_commit(project, tmp_path):
    freshen(project)
    first = git(project, "rev-parse", "HEAD")
    freshen(project)
    assert git(project, "rev-parse", "HEAD") == first


@pytest.mark.parametrize(
    "leftover",
    [
        "shapes/__pycache__/area.cpython-311.pyc", "shapes.egg-info/PKG-INFO", "build/lib/shapes/area.py",
        "dist/shapes-2.tar.gz", "shapes/area.py.orig", "fix.patch", ".hg/store", ".tox/py/area.py",
        "sub/.git/HEAD",
    ],
)  # fmt: skip
def test_what_a_build_left_goes_and_is_found_when_planted(project, leftover):
    for plant in (True, False):
        path = project / leftover
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FIXED)
        if plant:
            freshen(project)
            assert faults(project, FIX) == [] and not path.exists()
    assert faults(project, FIX)


def commit_of_the_future(folder: Path) -> str:
    """A commit with the fix that no branch holds."""
    path = folder / "shapes/area.py"
    path.write_text(FIXED)
    git(folder, "commit", "--quiet", "--all", "--message=the fix")
    future = git(folder, "rev-parse", "HEAD")
    git(folder, "reset", "--quiet", "--hard", "HEAD~1")
    return future


def test_a_planted_future_commit_is_found(project):
    freshen(project)
    commit_of_the_future(project)
    for name in ("logs", "ORIG_HEAD", "COMMIT_EDITMSG"):  # only the objects stay
        subprocess.run(["rm", "-rf", str(project / ".git" / name)], check=True)
    found = faults(project)
    assert "the repository holds 2 commits" in found
    assert any("objects belong to no commit" in fault for fault in found)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda folder: git(folder, "tag", "v2"), ".git/refs/tags/v2 does not belong"),
        (lambda folder: git(folder, "branch", "later"), ".git/refs/heads/later does not belong"),
        (lambda folder: git(folder, "pack-refs", "--all"), ".git/packed-refs does not belong"),
        (
            lambda folder: git(folder, "stash", "create") or commit_of_the_future(folder),
            ".git/ORIG_HEAD does not",
        ),
        (
            lambda folder: git(folder, "remote", "add", "o", "https://example.org"),
            "the repository has a remote",
        ),
        (lambda folder: (folder / "shapes/area.py").write_text("pass\n"), "the commit is not what lies in"),
    ],
)
def test_other_traces_are_found(project, plant, said):
    freshen(project)
    assert faults(project) == []
    plant(project)
    assert any(said in fault for fault in faults(project)), faults(project)


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("CHANGELOG", "2.0: area is now\n    return abs(width) * abs(height)\n", True),
        ("docs/area.rst", "    return  abs( width ) * abs( height )\n", True),
        ("old/area.py", FIXED, True),
        ("CHANGELOG", "2.0: area of negative sides\n", False),
        ("other.py", FIXED.replace("area", "surface"), False),  # a line by chance in code that is no copy
    ],
)
def test_lines_of_the_fix_are_found(project, path, text, found):
    (project / path).parent.mkdir(parents=True, exist_ok=True)
    (project / path).write_text(text)
    freshen(project)
    assert bool(faults(project, FIX)) == found


def test_an_installed_copy_with_the_fix_is_found(tmp_path):
    """The command looks through a whole file system, here a small one in place of ``/``."""
    (tmp_path / "lib/shapes").mkdir(parents=True)
    (tmp_path / "lib/shapes/area.py").write_text(BROKEN)
    (tmp_path / "app/shapes").mkdir(parents=True)
    (tmp_path / "app/shapes/area.py").write_text(FIXED)

    def listed() -> dict:
        command = copies_command("shapes", str(tmp_path / "found.json")).replace(
            'os.walk("/")', f'os.walk("{tmp_path}")'
        )
        command = command.replace('folder == "/"', f'folder == "{tmp_path}"').replace(
            "python3", sys.executable
        )
        subprocess.run(command, shell=True, check=True, timeout=PATIENCE)
        return json.loads((tmp_path / "found.json").read_text())

    assert listed() == {"area.py": [BROKEN]}
    assert shown_by(listed(), "shapes", FIX) is None
    (tmp_path / "lib/shapes/area.py").write_text(FIXED)
    assert shown_by(listed(), "shapes", FIX) == "area.py"
    (tmp_path / "lib/shapes/area.py").unlink()
    (tmp_path / "lib/shapes-2.0-py3-none-any.whl").write_text("")
    assert shown_by(listed(), "shapes", FIX).endswith("shapes-2.0-py3-none-any.whl")
