"""A child process whose log does not fit on the disk any more: it is heard to its end all the same."""

import os
import sys
import threading

import pytest

from flows.child import run_child
from flows.executors import _failure
from pipeline.graph import Stage
from pipeline.priority import AUTOGROUP
from tests.waiting import PATIENCE

MANY = 20_000  # lines: more than a pipe holds


def run(log):
    lines = []
    command = [sys.executable, "-c", f"for n in range({MANY}): print('line', n)"]
    ended = run_child(command, dict(os.environ), log, lines.append, lambda: None, threading.Event(),
                      limit_seconds=PATIENCE)  # fmt: skip
    return ended, lines


def test_every_line_reaches_listener_and_log(tmp_path):
    ended, lines = run(tmp_path / "deep" / "log.txt")
    assert ended.status == 0 and ended.ended_by is None
    assert lines == [f"line {n}" for n in range(MANY)] and ended.lines == lines[-200:]
    assert (tmp_path / "deep" / "log.txt").read_text().splitlines()[1:] == lines


def test_a_log_on_a_full_disk_stops_nothing(mount_disk):
    disk = mount_disk("64k")
    ended, lines = run(disk / "log.txt")
    assert ended.status == 0 and ended.ended_by is None and len(lines) == MANY
    ended, lines = run(disk / "new" / "log.txt")
    assert ended.status == 0 and len(lines) == MANY


def test_dvc_that_finds_the_disk_full_is_one_sentence(tmp_path):
    command = [
        sys.executable,
        "-c",
        "print('ERROR: unexpected error - [Errno 28] No space left on device'); exit(255)",
    ]
    ended = run_child(command, dict(os.environ), tmp_path / "log.txt", lambda line: None, lambda: None,
                      threading.Event(), limit_seconds=PATIENCE)  # fmt: skip
    failed = _failure(Stage("sft", "m", (), (), (), ""), ended, tmp_path / "log.txt")
    assert str(failed).startswith("sft: the disk is full: free some space") and not failed.killed


def lines_at_niceness_7(tmp_path, code):
    lines = []
    run_child([sys.executable, "-c", code], dict(os.environ), tmp_path / "log.txt", lines.append,
              lambda: None, threading.Event(), niceness=7, limit_seconds=PATIENCE)  # fmt: skip
    return lines


def test_niceness_holds_for_the_child(tmp_path):
    lines = lines_at_niceness_7(tmp_path, "import os; print(os.nice(0))")
    assert lines[0] == str(min(os.nice(0) + 7, 19))


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not schedule sessions as groups")
def test_niceness_holds_for_the_group_by_which_linux_schedules_a_session(tmp_path):
    lines = lines_at_niceness_7(tmp_path, f"print(open('{AUTOGROUP}').read())")
    assert lines[0].endswith(" nice 7")
