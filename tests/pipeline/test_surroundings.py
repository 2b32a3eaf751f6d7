"""Changes outside the repository that ``collect`` has to see: files of a folder, installed packages."""

import os

import pytest
import yaml

from pipeline import artifacts
from pipeline.graph import load_graph
from pipeline.recipe import load_recipe
from pipeline.stage import execute
from pipeline.status import status_of
from pipeline.surroundings import changed, surroundings

COLLECT = load_graph()["collect"]


@pytest.fixture
def documents(tmp_path, monkeypatch):
    """A folder of documents."""
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    folder = tmp_path / "documents"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("one")
    (folder / "deep" / "b.md").write_text("two")
    return folder


def recipe_of(folder, *sources: dict):
    path = folder.parent / "mine.yaml"
    mix = {source["name"]: 1.0 for source in sources}
    values = {"extends": "tiny", "collect": {"sources": list(sources)}, "pretrain_data": {"mix": mix}}
    path.write_text(yaml.safe_dump(values))
    return str(path)


def collect(context):
    (context.out / "documents.txt").write_text("x")
    return {}


def made(name: str) -> float:
    return artifacts.read_record(artifacts.artifact_dir(name, "collect"))["started"]


def test_a_folder_that_changed_is_collected_again(documents):
    name = recipe_of(documents, {"kind": "folder", "name": "mine", "path": str(documents)})
    execute("collect", collect, name)
    for change in (
        lambda: (documents / "a.txt").write_text("two"),
        lambda: (documents / "c.txt").write_text("new"),
        lambda: (documents / "deep" / "b.md").rename(documents / "b.md"),
        lambda: (documents / "c.txt").unlink(),
    ):
        first = made("mine")
        execute("collect", collect, name)
        assert made("mine") == first and not changed(COLLECT, load_recipe(name))
        change()
        assert changed(COLLECT, load_recipe(name))
        state = status_of({"collect": COLLECT}, load_recipe(name))[0]
        assert (state.state, state.reason) == ("stale", "source mine changed")
        execute("collect", collect, name)
        assert made("mine") > first


def test_a_file_that_cannot_be_read_stops_nothing(documents):
    name = recipe_of(documents, {"kind": "folder", "name": "mine", "path": str(documents)})
    before = surroundings(COLLECT, load_recipe(name))
    (documents / "c.txt").symlink_to("/proc/self/mem")  # a regular file that nobody can read from its start
    assert surroundings(COLLECT, load_recipe(name)) != before


def test_what_decides_nothing_is_not_looked_at(documents):
    name = recipe_of(documents, {"kind": "folder", "name": "mine", "path": str(documents)})
    before = surroundings(COLLECT, load_recipe(name))
    (documents / ".hidden").write_text("x")
    os.utime(documents / "a.txt", (1, 1))
    assert surroundings(COLLECT, load_recipe(name)) == before
    assert surroundings(load_graph()["sft"], load_recipe(name)) == {}


def test_an_installed_package_of_another_version(documents, tmp_path, monkeypatch):
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, version: str) -> None:
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    install("some_thing", "1.0")
    name = recipe_of(
        documents,
        {"kind": "python_packages", "name": "one", "packages": ["Some-Thing"]},
        {"kind": "python_packages", "name": "all"},
        {"kind": "python_packages", "name": "stdlib", "packages": ["stdlib"]},
    )
    start = surroundings(COLLECT, load_recipe(name))
    install("another", "3")
    after_another = surroundings(COLLECT, load_recipe(name))
    (site / "some_thing-1.0.dist-info").rename(site / "kept")
    install("some_thing", "2.0")
    after_update = surroundings(COLLECT, load_recipe(name))
    assert after_another == start | {"all": after_another["all"]} and after_another != start
    assert after_update["one"] != start["one"] and after_update["all"] != after_another["all"]
    assert after_update["stdlib"] == start["stdlib"]
