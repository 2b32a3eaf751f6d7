"""``/patch`` of ``glm5 env try``: a fix that another model wrote is put into the sandbox and judged."""

import asyncio
import contextlib
import io
import json
import sys

import pytest

from environments import command
from environments.arithmetic import Arithmetic
from environments.attempt import attempt
from environments.harbor.environment import HarborTasks
from pipeline.errors import UserError

REPOSITORY = """\
RUN git init -q && git add --all && git -c user.name=m -c user.email=m@example.org commit -qm start
"""
ADDED = """\
diff --git a/total.py b/total.py
new file mode 100644
--- /dev/null
+++ b/total.py
@@ -0,0 +1,2 @@
+import sys
+print(sum(int(line) for line in open(sys.argv[1])))
diff --git a/total.txt b/total.txt
new file mode 100644
--- /dev/null
+++ b/total.txt
@@ -0,0 +1 @@
+100
"""
CHANGED = """\
--- a/numbers.txt
+++ b/numbers.txt
@@ -1,2 +1,2 @@
-28
+29
 73
"""


@pytest.fixture
def judge(best_backend, write_task, tmp_path, monkeypatch, capsys):
    """``judge(patch)``: what ``glm5 env try`` prints as the patch is applied to the task and judged. With
    ``refused`` the command fails at its end, with what it printed as its reason.
    """
    dockerfile = write_task() / "environment/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + REPOSITORY)
    harbor = HarborTasks(dockerfile.parents[2], best_backend)
    monkeypatch.setattr(command, "_catalog", lambda options, backend=None: {"harbor": harbor})

    def judge(patch: str, *options: str, refused: bool = False) -> list[str]:
        (tmp_path / "model.patch").write_text(patch)
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"/patch {tmp_path}/model.patch\n/done\n"))
        with pytest.raises(UserError) if refused else contextlib.nullcontext() as raised:
            assert command.main(["try", "harbor", *options]) == 0
        said = capsys.readouterr().out.splitlines()[-2:]
        assert not refused or str(raised.value) == f"not all that the pipe said was done: {said[0]}"
        return said

    return judge


def test_a_fix_is_applied_rewarded_and_recorded(judge, tmp_path):
    record = tmp_path / "episode.json"
    assert judge(ADDED, "--record", str(record)) == ["applied by git apply", "reward 1: the tests pass"]
    _, patch, outcome = json.loads(record.read_text())["steps"]
    assert (patch["source"], patch["message"]) == ("agent", ADDED)
    assert (outcome["source"], outcome["message"]) == ("user", "applied by git apply")


def test_a_patch_without_a_place_is_told_and_changes_nothing(judge, tmp_path):
    record = tmp_path / "episode.json"
    applied, judged = judge(CHANGED, "--record", str(record), refused=True)
    assert json.loads(record.read_text())["steps"][-1]["message"] == applied
    assert applied.startswith("not applied: git apply: ") and judged.startswith("reward 0")


def test_a_patch_may_not_leave_the_project(judge):
    applied, _ = judge(ADDED.replace("total.txt", "../tests/check.py"), refused=True)
    assert applied == "not applied: the patch names ../tests/check.py, which is not a file of the project"


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file or directory"), (b"\xff\xfe\0", "it is no text")]
)
def test_a_file_that_cannot_be_read_is_a_sentence(judge, tmp_path, monkeypatch, capsys, content, said):
    if content is not None:
        (tmp_path / "bad.patch").write_bytes(content)
    lines = f"/patch {tmp_path}/bad.patch\n/patch {tmp_path}/\0\n/quit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    with pytest.raises(UserError, match="not all that the pipe said was done: .*cannot be read"):
        command.main(["try", "harbor"])
    out = capsys.readouterr().out
    assert f"{tmp_path}/bad.patch cannot be read: {said}" in out and out.count("cannot be read") == 2


def test_only_a_task_with_a_repository_takes_patches(monkeypatch, capsys):
    environment = Arithmetic()
    lines = iter(["/patch x", "/quit"])
    tried = asyncio.run(attempt(environment, environment.make_task("add2", 1), lambda _: next(lines)))
    assert tried.refused == ["this task has no repository to patch"]
    assert "this task has no repository to patch" in capsys.readouterr().out
