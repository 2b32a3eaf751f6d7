"""A synthetic Debian source package of the small project: a series whose order is not that of its names."""

import io
import tarfile
from pathlib import Path

from data_pipelines.task_building.swe.apt_sources import SourcePackage
from data_pipelines.task_building.swe.hunks import unified
from data_pipelines.task_building.swe.project import Project
from pipeline.artifacts import hash_file
from tests.data_pipelines.swe.conftest import NEW_TESTS, OLD, OLD_TESTS

CODE, TESTS = "src/shapes.py", "tests/test_shapes.py"
_CHECK = '    if width < 0 or height < 0:\n        raise ValueError("a side is negative")\n'
CHECKED = OLD.replace("    return width * height", _CHECK + "    return width * height")
CLEANED = CHECKED.replace(
    "    return name.strip().lower()", "    cleaned = name.strip()\n    return cleaned.lower()"
)
FOLDED = CLEANED.replace("cleaned.lower()", "cleaned.casefold()")
_LABEL, _FLAKY = NEW_TESTS.index("\n\ndef test_label"), NEW_TESTS.index("\n\ndef test_flaky")
AREA_TESTS, LABEL_TESTS = NEW_TESTS[:_LABEL], NEW_TESTS[:_FLAKY]

PATCHES = {
    "9-words.patch": "Subject: Say more in the list of changes\n---\n"
    + unified({"CHANGES.rst": "Changes\n"}, {"CHANGES.rst": "Changes\n=======\n"}),
    "negative.patch": "Description: Refuse a side below zero\n Such a side has no length.\n"
    "Origin: upstream, https://example.org/commit/1\nBug-Debian: https://bugs.debian.org/1\n\n"
    + unified({CODE: OLD, TESTS: OLD_TESTS}, {CODE: CHECKED, TESTS: AREA_TESTS}),
    "5-clean.patch": "Subject: Clean labels step by step\n\n" + unified({CODE: CHECKED}, {CODE: CLEANED}),
    "1-fold.patch": "From: A <a@example.org>\n"
    "Subject: [PATCH 2/2] Labels that differ in\n case alone are the same\n---\n"
    + unified({CODE: CLEANED, TESTS: AREA_TESTS}, {CODE: FOLDED, TESTS: LABEL_TESTS}),
}
SERIES = "# Debian's changes\n9-words.patch\n\nnegative.patch -p1\n5-clean.patch  # no test\n1-fold.patch\n"


def write_patches(folder: Path, series: str = SERIES, patches: dict[str, str] = PATCHES) -> Path:
    folder.mkdir(parents=True)
    for name, text in {"series": series, **patches}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def pack_patches(
    folder: Path, project: Project, series: str = SERIES, patches: dict[str, str] = PATCHES
) -> SourcePackage:
    """Write the package's archive into ``folder``; its upstream is the project's first release."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "shapes_1.0-1.debian.tar.xz"
    with tarfile.open(archive, "w:xz") as content:
        for name, text in {"series": series, **patches}.items():
            entry = tarfile.TarInfo(f"debian/patches/{name}")
            entry.size = len(text.encode())
            content.addfile(entry, io.BytesIO(text.encode()))
    return SourcePackage("shapes", "1.0-1", hash_file(archive), project.releases[0])
