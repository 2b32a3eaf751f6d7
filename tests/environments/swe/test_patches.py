"""Patches of models: how each of the fall-backs is reached, and that nothing is left half done."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from environments.sandbox.interface import Result
from environments.swe.history import freshen
from environments.swe.patches import added_lines, apply_patch, normal, targets_of
from tests.waiting import PATIENCE

OLD = "".join(f"line {number}\n" for number in range(1, 21))
NEW = OLD.replace("line 10\n", "line ten\n")


class Host:
    """The part of a sandbox that applying needs, on a folder of the host; the patch file lies beside it."""

    def __init__(self, folder: Path) -> None:
        self.patch = folder.parent / "model.patch"

    async def run(self, command: str, *, seconds: float = 60.0, cwd: str | None = None) -> Result:
        command = command.replace("/tmp/model.", f"{self.patch.parent}/model.")
        done = subprocess.run(
            ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE
        )
        return Result(done.returncode, done.stdout + done.stderr)

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        assert path == "/tmp/model.patch"
        self.patch.write_bytes(content)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text(OLD)
    (folder / "b.txt").write_text("b\n")
    freshen(folder)
    return folder


def apply(project: Path, patch: str):
    return asyncio.run(apply_patch(Host(project), patch, str(project)))


def state(project: Path) -> dict[str, str]:
    return {
        path.name: path.read_text()
        for path in project.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(project).parts
    }


def diff(old: str, new: str, tmp_path: Path) -> str:
    for name, text in (("old", old), ("new", new)):
        (tmp_path / name).write_text(text)
    command = ["git", "diff", "--no-index", "--no-color", "old", "new"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE).stdout
    return said.replace("a/old", "a/a.txt").replace("b/new", "b/a.txt")


def test_a_good_patch_and_the_same_again(project, tmp_path):
    patch = diff(OLD, NEW, tmp_path)
    assert apply(project, patch).way == "git apply"
    assert state(project) == {"a.txt": NEW, "b.txt": "b\n"}
    assert apply(project, patch).way == "already applied"
    assert state(project)["a.txt"] == NEW


def test_a_fenced_patch_with_windows_lines(project, tmp_path):
    patch = "```diff\n" + diff(OLD, NEW, tmp_path).replace("\n", "\r\n") + "```\n"
    assert apply(project, patch).way == "git apply"
    assert state(project)["a.txt"] == NEW


def test_a_patch_for_another_state_goes_in_by_a_three_way_merge(project, tmp_path):
    """Its base is in the repository; the line beside its hunk has since changed in the folder."""
    patch = diff(OLD, OLD.replace("line 5\n", "line five\n"), tmp_path)
    changed = OLD.replace("line 1\n", "line one\n").replace("line 2\n", "line two\n")
    (project / "a.txt").write_text(changed)
    subprocess.run(["git", "add", "a.txt"], cwd=project, check=True)
    assert apply(project, patch).way == "git apply --3way"
    assert state(project)["a.txt"] == changed.replace("line 5\n", "line five\n")


def test_a_patch_with_wrong_context_goes_in_with_fuzz(project, tmp_path):
    patch = diff(OLD, NEW, tmp_path).replace(" line 8\n", " line eight\n")
    patch = "\n".join(line for line in patch.split("\n") if not line.startswith("index "))
    assert apply(project, patch).way == "patch --fuzz=5"
    assert state(project)["a.txt"] == NEW


def test_a_patch_without_a_place_changes_nothing_and_names_the_file(project, tmp_path):
    (project / "b.txt").write_text("mine\n")
    patch = (
        diff(OLD, NEW, tmp_path)
        + "diff --git a/b.txt b/b.txt\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-zz\n+y\n"
    )
    before = state(project)
    applied = apply(project, patch)
    assert applied.way is None and "patch does not apply" in applied.reason
    assert applied.rejected == ("b.txt",)
    assert state(project) == before


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "empty or no unified diff"),
        ("I changed the file.", "empty or no unified diff"),
        (
            "--- a/../../etc/passwd\n+++ b/../../etc/passwd\n@@ -1 +1 @@\n-a\n+b\n",
            "not a file of the project",
        ),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "not a file of the project"),
        ("--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-a\n+b\n", "not a file of the project"),
    ],
)
def test_what_is_no_patch_of_the_project_is_refused(project, patch, reason):
    before = state(project)
    applied = apply(project, patch)
    assert applied.way is None and reason in applied.reason
    assert state(project) == before


def test_a_folder_without_a_repository_is_said(tmp_path):
    (tmp_path / "bare").mkdir()
    applied = apply(tmp_path / "bare", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    assert applied.way is None and "no git repository" in applied.reason


def test_new_and_removed_files(project):
    patch = (
        "diff --git a/c.txt b/c.txt\nnew file mode 100644\n--- /dev/null\n+++ b/c.txt\n@@ -0,0 +1 @@\n+c\n"
        "diff --git a/b.txt b/b.txt\ndeleted file mode 100644\n"
        "--- a/b.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n"
    )
    assert apply(project, patch).way == "git apply"
    assert state(project) == {"a.txt": OLD, "c.txt": "c\n"}


def test_lines_that_look_like_headers_are_content():
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/y\n+++ b/z\n same\n"
    assert set(targets_of(patch)) == {"x"}
    assert added_lines(patch) == {"x": ["++ b/z"]}


def test_normal_ends_with_one_newline():
    assert normal("```\na\n\n```") == normal("a\n\n\n") == "a\n"


def test_an_untracked_file_stays_where_a_patch_has_no_place(project, tmp_path):
    (project / "new.txt").write_text("mine\n")
    patch = diff(OLD, NEW, tmp_path).replace("a.txt", "new.txt")
    before = state(project)
    assert apply(project, patch).way is None
    assert state(project) == before


def test_a_new_file_given_twice(project):
    patch = "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n"
    assert apply(project, patch).way == "git apply"
    assert apply(project, patch).way == "already applied"
    assert state(project)["new.txt"] == "new\n"
