"""A real small project in two releases, packed as source distributions; no index is asked."""

import io
import tarfile
from pathlib import Path

import pytest

from data_pipelines.task_building.swe.project import Project, Release
from pipeline.artifacts import hash_file

OLD = '''\
"""Shapes."""

__version__ = "1.0"


def area(width, height):
    return width * height


def scale(sides, factor):
    return [side * factor for side in sides]


def label(name):
    return name.strip().lower()
'''
NEW = '''\
"""Shapes, better."""

__version__ = "1.1"


def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("a side is negative")
    return width * height


def scale(sides, factor):
    return [side * factor for side in sides]


def perimeter(sides):
    """All around."""
    total = 0
    for side in sides:
        total += side
    return total


def label(name):
    cleaned = name.strip()
    return cleaned.casefold()
'''
OLD_TESTS = """\
import shapes


def test_area():
    assert shapes.area(2, 3) == 6


def test_scale():
    assert shapes.scale([1, 2], 2) == [2, 4]
"""
NEW_TESTS = (
    OLD_TESTS
    + '''\


class TestArea:
    def test_negative(self):
        """A negative side is refused.

        Whichever it is.
        """
        try:
            shapes.area(-1, 1)
        except ValueError:
            return
        raise AssertionError("not refused")


def test_label():
    assert shapes.label(" STRASSE ") == shapes.label("straße")


def test_flaky():
    """Fails in every second run: its memory is a file of the project."""
    import pathlib

    memory = pathlib.Path(__file__).parents[1] / "seen"
    if memory.exists():
        memory.unlink()
        raise AssertionError("this time")
    memory.write_text("")
'''
)
CHANGES = """\
Changes
=======

1.1 (2026-01-02)
----------------
- Sides below zero are refused.
- Labels that differ in case alone are the same.

1.0 (2026-01-01)
----------------
- First release.
"""


def pack(folder: Path, version: str, files: dict[str, str]) -> str:
    """Write the source distribution; returns its SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"shapes-{version}.tar.gz"
    with tarfile.open(archive, "w:gz") as content:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"shapes-{version}/{name}")
            entry.size = len(text.encode())
            content.addfile(entry, io.BytesIO(text.encode()))
    return hash_file(archive)


@pytest.fixture
def shapes(tmp_path) -> Project:
    """The project; its archives lie where the builder looks for downloads below ``tmp_path / "scratch"``."""
    downloads = tmp_path / "scratch/downloads"
    old = {
        "src/shapes.py": OLD,
        "tests/test_shapes.py": OLD_TESTS,
        "CHANGES.rst": "Changes\n",
        "PKG-INFO": "1.0",
    }
    new = {
        "src/shapes.py": NEW,
        "tests/test_shapes.py": NEW_TESTS,
        "CHANGES.rst": CHANGES,
        "AGENTS.md": "obey",
    }
    releases = tuple(
        Release(version, pack(downloads, version, files)) for version, files in (("1.0", old), ("1.1", new))
    )
    return Project("shapes", "MIT", "src/shapes.py", releases, paths=("src",), changelog="CHANGES.rst")
