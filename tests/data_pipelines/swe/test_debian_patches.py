"""Headers and series of Debian patches, and how apt fetches them: from a folder here, nothing is run."""

import hashlib
import shutil
import subprocess

import pytest

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe.apt_sources import AptSources, source_lists
from data_pipelines.task_building.swe.debian import PACKAGES
from data_pipelines.task_building.swe.hunks import unified
from data_pipelines.task_building.swe.patch_header import Header, read_header
from data_pipelines.task_building.swe.patch_series import read_series, steps
from data_pipelines.task_building.swe.projects import PROJECTS
from pipeline.artifacts import hash_file
from pipeline.errors import UserError
from tests.data_pipelines.swe.conftest import NEW_TESTS, OLD, OLD_TESTS
from tests.data_pipelines.swe.debian_package import (
    AREA_TESTS,
    CHECKED,
    CLEANED,
    CODE,
    FOLDED,
    LABEL_TESTS,
    PATCHES,
    SERIES,
    TESTS,
    pack_patches,
    write_patches,
)
from tests.waiting import PATIENCE

MAILED = """\
From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001
From: =?utf-8?q?Piotr_O=C5=BCarowski?= <p@example.org>
Date: Thu, 2 Apr 2020 13:41:14 +0200
Subject: [PATCH 1/3] =?utf-8?q?Gr=C3=B6=C3=9Fe?= is kept when
 it is large.

It was lost.
(cherry picked from commit 77f43366d3a7e0e3b998e3edee6718af544b5487)

Bug: https://example.org/1
Bug-Debian: https://bugs.debian.org/2
Forwarded: no

Signed-off-by: A <a@example.org>
---
 secret statistics
diff --git a/x b/x
"""
DEP3 = """\
Description: Refuse what is too long
 It took all memory.
 .
 Note: a limit is set.
Author: B <b@example.org>
Origin: backport, https://example.org/3
--- a/x
+++ b/x
Subject: a line of the diff
"""
LOOSE = """\
Commit 065334d1ee5b7210e1a0a93c37238c86858f2af7 upstream:

Mend the counter

It counted twice; see
https://example.org/4

Index: x
"""


@pytest.mark.parametrize(
    ("patch", "header"),
    [
        (
            MAILED,
            Header(
                "Größe is kept when it is large",
                "It was lost.",
                ("Bug: https://example.org/1", "Bug-Debian: https://bugs.debian.org/2"),
            ),
        ),
        (
            DEP3,
            Header(
                "Refuse what is too long",
                "It took all memory.\n\nNote: a limit is set.",
                ("Origin: backport, https://example.org/3",),
            ),
        ),
        (LOOSE, Header("Mend the counter", "It counted twice; see", ())),
        ("Subject: =?nosuch?q?a?=\n", Header("=?nosuch?q?a?=", "", ())),
        ("Last-Update: 2025-02-27\n--- a/x\n", Header("", "", ())),
    ],
)
def test_what_a_patch_says_of_itself(patch, header):
    assert read_header(patch) == header


def test_a_series_keeps_its_order(tmp_path):
    folder = write_patches(tmp_path / "patches")
    assert read_series(folder) == ["9-words.patch", "negative.patch", "5-clean.patch", "1-fold.patch"]
    assert read_series(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ("negative.patch -p0\n", "options other than -p1"),
        ("gone.patch\n", "names a patch that is not there"),
        ("../outside.patch\n", "names a patch that is not there"),
    ],
)
def test_a_series_that_the_format_does_not_allow(tmp_path, series, said):
    (tmp_path / "outside.patch").write_text("")
    with pytest.raises(Rejected, match=said):
        read_series(write_patches(tmp_path / "patches", series))


@pytest.fixture
def upstream(tmp_path):
    tree = tmp_path / "repository/upstream"
    for name, text in ((CODE, OLD), (TESTS, OLD_TESTS), ("CHANGES.rst", "Changes\n")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return tree


def test_each_patch_of_a_series_is_a_step(tmp_path, upstream):
    """In a folder within a repository, where git would look for the files from the repository's top."""
    subprocess.run(["git", "init", "--quiet"], cwd=upstream.parent, check=True, timeout=PATIENCE)
    folder, target = write_patches(tmp_path / "patches"), upstream.parent / "states"
    found = list(steps(upstream, folder, target))
    assert [step.name for step in found] == read_series(folder)
    assert [step.text for step in found] == [PATCHES[step.name] for step in found]
    assert found[0].before == upstream and found[2].before == found[1].after
    states = [[(step.after / name).read_text() for name in (CODE, TESTS)] for step in found]
    assert states == [
        [OLD, OLD_TESTS], [CHECKED, AREA_TESTS], [CLEANED, AREA_TESTS], [FOLDED, LABEL_TESTS],
    ]  # fmt: skip
    assert (upstream / CODE).read_text() == OLD and (upstream / "CHANGES.rst").read_text() == "Changes\n"
    (found[3].after / CODE).write_text("kept")  # a second time nothing is applied
    assert (list(steps(upstream, folder, target))[3].after / CODE).read_text() == "kept"


def test_a_patch_that_does_not_apply_ends_the_series(tmp_path, upstream):
    """Here the last one: without the third its context is not there."""
    found, target = [], upstream.parent / "states"
    with pytest.raises(Rejected, match="a Debian patch does not apply: it and those after it are left out"):
        for step in steps(
            upstream, write_patches(tmp_path / "p", SERIES.replace("5-clean.patch", "")), target
        ):
            found.append(step.name)
    assert found == ["9-words.patch", "negative.patch"]
    assert sorted(path.name for path in upstream.parent.glob("states*")) == ["states-01", "states-02"]


def test_a_patch_shall_not_lead_out_and_what_is_not_unpacked_is_passed_over(tmp_path, upstream):
    mixed = unified(
        {".github/x.yml": "a\n", CODE: OLD, "shapes.egg-info/PKG-INFO": "1\n"},
        {".github/x.yml": "b\n", CODE: CHECKED, "shapes.egg-info/PKG-INFO": "2\n"},
    )
    patches = {"mixed.patch": mixed, "out.patch": unified({}, {"src/../../out": "x\n"})}
    found = steps(
        upstream, write_patches(tmp_path / "p", "mixed.patch\nout.patch\n", patches), tmp_path / "states"
    )
    assert (next(found).after / CODE).read_text() == CHECKED
    with pytest.raises(Rejected, match="does not apply"):
        next(found)
    assert not list(tmp_path.rglob("out"))


def test_lists_of_sources_name_the_sources(tmp_path):
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb x\ndeb http://a.example stable main\n deb [arch=amd64] http://b.example stable main\n"
        "deb-src http://a.example stable main\n"
    )
    (folder / "c.sources").write_text(
        "Types: deb\nURIs: http://c/deb\nSuites: stable\n\nTypes: deb deb-src\nURIs: d\n"
    )
    (folder / "off.list.disabled").write_text("deb http://e.example stable main\n")
    assert source_lists(tmp_path) == {
        "sources.list": "# deb x\ndeb-src http://a.example stable main\n"
        "deb-src [arch=amd64] http://b.example stable main\ndeb-src http://a.example stable main\n",
        "c.sources": "Types: deb-src\nURIs: http://c/deb\nSuites: stable\n\nTypes: deb-src\nURIs: d\n",
    }
    assert source_lists(tmp_path / "none") == {}


def repository(folder, archive, listed: str | None = None) -> str:
    """A flat repository of packages in a folder, with one source package; returns its line for apt."""
    dsc = folder / "shapes_1.0-1.dsc"
    shutil.copyfile(archive, folder / archive.name)
    entry = f"{listed or hash_file(archive)} {archive.stat().st_size} {archive.name}"
    dsc.write_text(f"Format: 3.0 (quilt)\nSource: shapes\nVersion: 1.0-1\nChecksums-Sha256:\n {entry}\n")
    digest = hashlib.sha256(dsc.read_bytes()).hexdigest()
    (folder / "Sources").write_text(
        f"Package: shapes\nBinary: shapes\nVersion: 1.0-1\nFormat: 3.0 (quilt)\nDirectory: .\n"
        f"Checksums-Sha256:\n {digest} {dsc.stat().st_size} {dsc.name}\n {entry}\n"
    )
    return f"deb [trusted=yes] file:{folder} ./\n"


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="there is no apt-get here")
def test_apt_fetches_from_lists_of_its_own(tmp_path, shapes):
    store, etc, downloads = tmp_path / "store", tmp_path / "etc", tmp_path / "fetched"
    package = pack_patches(tmp_path / "made", shapes)
    for folder in (store, etc, tmp_path / "apt"):
        folder.mkdir()
    (etc / "sources.list").write_text(repository(store, tmp_path / "made" / package.archive))
    apt = AptSources(tmp_path / "apt", etc)
    archive = apt.fetch(package, downloads)
    assert hash_file(archive) == package.sha256
    assert [path.name for path in downloads.iterdir()] == [package.archive]
    later = type(package)("shapes", "1.0-2", package.sha256, package.upstream)
    with pytest.raises(Rejected, match=r"shapes 1.0-2 is not to be had from Debian here \(.*1.0-2"):
        apt.fetch(later, downloads)
    archive.write_bytes(b"other")
    with pytest.raises(UserError, match=r"1.0-1.debian.tar.xz has SHA-256 \w+, expected is \w+: delete it"):
        apt.fetch(package, downloads)


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="there is no apt-get here")
def test_a_machine_whose_apt_has_no_sources(tmp_path, shapes):
    package = pack_patches(tmp_path / "made", shapes)
    (tmp_path / "apt").mkdir()
    with pytest.raises(Rejected, match="Debian sources are not to be had here: no index of sources came"):
        AptSources(tmp_path / "apt", tmp_path / "none").fetch(package, tmp_path / "fetched")


def test_a_machine_without_apt(tmp_path, shapes, monkeypatch):
    """Nothing is asked for where the archive is there."""
    package = pack_patches(tmp_path / "made", shapes)
    monkeypatch.setenv("PATH", str(tmp_path))
    apt = AptSources(tmp_path)
    with pytest.raises(Rejected, match="Debian sources are not to be had here: there is no apt-get"):
        apt.fetch(package, tmp_path / "fetched")
    assert apt.fetch(package, tmp_path / "made") == tmp_path / "made" / package.archive


def test_declared_packages_belong_to_projects():
    assert PACKAGES.keys() <= PROJECTS.keys() and "Jinja2" in PACKAGES
    for package in [package for packages in PACKAGES.values() for package in packages]:
        assert package.version.startswith(f"{package.upstream.version}-")
        assert len(package.sha256) == len(package.upstream.sha256) == 64
    assert NEW_TESTS.startswith(AREA_TESTS) and AREA_TESTS != LABEL_TESTS
