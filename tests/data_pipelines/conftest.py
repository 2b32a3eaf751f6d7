"""A small real corpus, and stages run on it as the command line runs them."""

import shutil
import sysconfig
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from data_pipelines.documents import Document
from pipeline import artifacts
from pipeline.stage import execute
from tests.sandboxes import backend_or_skip, image_cache

ROOT = Path(__file__).parents[2]
STDLIB = Path(sysconfig.get_path("stdlib"))
PACKAGES = ("json", "email", "html", "logging", "importlib", "wsgiref", "curses", "sqlite3")
STAGES = ("collect", "eval_sets", "curate", "tokenizer", "pretrain_data", "midtrain_data")


def document(text: str, path: str = "a.py", **changes) -> Document:
    facts = {"source": "files", "package": "p", "licence": "MIT", "language": "python", "kind": "code"}
    return Document(text, path=path, **{**facts, **changes})


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Some packages of the standard library, and things that must not reach training."""
    folder = tmp_path_factory.mktemp("corpus")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "test*")
        shutil.copytree(STDLIB / package, folder / package, ignore=ignored)
    copy = folder / "copied"
    copy.mkdir()
    original = (STDLIB / "json" / "decoder.py").read_text()
    (copy / "same.py").write_text(original)
    (copy / "nearly.py").write_text(
        original.replace("JSONDecodeError", "DecodeProblem", 2) + "\nVERSION = 2\n"
    )
    (copy / "broken.py").write_text("def f(:\n" + "    pass\n" * 60)
    (copy / "latin.md").write_bytes("Ein Stück Text für die Prüfung.\n".encode("latin-1") * 30)
    return folder


class Chain:
    """Runs data stages of one recipe below one root."""

    def __init__(self, root: Path, sources: list[dict], **sections):
        mix = {source["name"]: 1.0 for source in sources}
        recipe = {
            "extends": str(ROOT / "recipes" / "smoke.yaml"),
            "collect": {"sources": sources},
            "tokenizer": {"vocab_size": 1024, "train_mb": 1},
            "model": {"vocab_size": 1024},
            "pretrain_data": {"mix": mix, "tokens": 60_000},
            **sections,
        }
        self.root = root
        self.recipe = root / "small.yaml"
        self.recipe.write_text(yaml.safe_dump(recipe))

    def run(self, *stages: str) -> None:
        for stage in stages:
            module = import_module(f"data_pipelines.{stage}")
            execute(stage, module.run, str(self.recipe))

    def folder(self, stage: str) -> Path:
        return artifacts.artifact_dir("small", stage)


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """``chain(sources, **sections)`` makes a recipe below a fresh root."""
    monkeypatch.chdir(ROOT)

    def make(sources: list[dict], name: str = "root", **sections) -> Chain:
        root = tmp_path / name
        root.mkdir()
        monkeypatch.setenv("GLM5_ROOT", str(root))
        return Chain(root, sources, **sections)

    return make


@pytest.fixture(scope="session")
def task_backend(tmp_path_factory):
    """A real sandbox backend as all tests of this process share it."""
    return backend_or_skip(image_cache(tmp_path_factory))
