"""How a command ends: with one sentence, and without a word when nobody reads what it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
COMMAND = """
import sys
from pipeline.errors import UserError, run_command

def main():
    print("some words" * int(sys.argv[1]))
    if sys.argv[2] == "fail":
        raise UserError("recipes/x.yaml is not here: name another")
    if sys.argv[2] == "write":
        open(sys.argv[3], "w")
    return 3

run_command(main)
"""


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True,
        timeout=PATIENCE, **options,
    )  # fmt: skip


def test_the_status_of_the_command_and_of_an_error():
    assert run("1", "end", stdout=subprocess.PIPE).returncode == 3
    failed = run("1", "fail", stdout=subprocess.PIPE)
    assert (failed.returncode, failed.stderr) == (1, "error: recipes/x.yaml is not here: name another\n")


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for place, why in (
        (tmp_path / "file/inside", "Not a directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        failed = run("1", "write", str(place), stdout=subprocess.PIPE)
        sentence = f"error: {place} cannot be used ({why}): mend that, or set GLM5_ROOT to another folder\n"
        assert (failed.returncode, failed.stderr) == (1, sentence)
    missing = run("1", "write", str(tmp_path / "no/file"), stdout=subprocess.PIPE)
    assert "Traceback" in missing.stderr  # a fault of the project's own


@pytest.mark.parametrize("times", ["1", "100000"])
def test_a_reader_that_left_is_no_fault(times):
    readable, writable = os.pipe()
    os.close(readable)
    try:
        done = run(times, "end", stdout=writable)
    finally:
        os.close(writable)
    assert (done.returncode, done.stderr) == (1, "")
