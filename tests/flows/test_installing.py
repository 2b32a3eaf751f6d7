"""Setting up where something is wrong: one sentence, and the next `make` begins where it can."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows import doctor
from tests.waiting import PATIENCE

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (tmp_path / "requirements.lock").write_text("no-such-package-anywhere==1.0\n")
    return tmp_path


def make(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    # Under `make test` a make within it would tell which folder it enters and leaves.
    return subprocess.run(
        ["make", "--no-print-directory", "pipeline", *arguments], cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, **options,
    )  # fmt: skip


def test_a_half_made_environment_is_made_anew_and_a_failing_pip_is_one_sentence(clone):
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True, timeout=PATIENCE
    )
    done = make(clone, f"PYTHON={sys.executable}", "PIP_ARGS=--no-index")
    assert done.returncode != 0
    assert "No matching distribution found for no-such-package-anywhere" in done.stdout  # this pip works
    assert "error: pip could not install everything" in done.stdout and "PIP_ARGS" in done.stdout
    assert not (clone / ".venv/.installed").exists()


def test_no_python_of_the_right_version(clone):
    done = make(clone, "PYTHON=/no/such/python")
    assert done.returncode != 0
    assert "error: Python 3.11 or 3.12 is needed and was not found (/no/such/python)" in done.stdout


@pytest.mark.parametrize("recipe", ["", " "])
def test_an_empty_name_of_a_recipe_is_one_sentence(clone, environment, recipe):
    python = clone / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (clone / ".venv/.installed").touch()
    for name in ("recipes", "dvc.yaml"):
        (clone / name).symlink_to(REPOSITORY / name)
    done = make(clone, f"RECIPE={recipe}", env=environment)
    assert done.returncode != 0
    error, *ends = done.stdout.splitlines()
    assert error.startswith("error: the name of the recipe is empty: give one of ") and " tiny" in error
    assert [line for line in ends if not line.startswith("make")] == []
    assert not (clone / ".prefect").exists()


def test_a_torch_that_does_not_import(tmp_path, monkeypatch):
    assert doctor._torch().good
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor._torch()
    assert not found.good and found.needed
    assert "cannot be imported: ImportError: libcudart.so.12" in found.value and "PIP_ARGS" in found.advice
