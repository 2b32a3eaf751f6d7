"""Who may import whom (the arrows of the house), and that most of it imports without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
# Package -> the packages of this repository that it may import besides itself.
ARROWS = {
    "pipeline": {"model"},  # model.config alone, see below
    "model": set(),
    "environments": {"pipeline"},
    "data_pipelines": {"environments", "pipeline"},
    "evals": {"environments", "pipeline"},
    "tasks": {"model", "environments", "evals", "pipeline"},
    "flows": {"pipeline"},
}
# Where only the shape of a model is wanted, which is free of torch.
CONFIG_ONLY = {"pipeline"}
WITHOUT_TORCH = ("pipeline", "flows", "environments", "data_pipelines", "evals")
ELSEWHERE = {"environments.adapters.harbor_environment"}  # imported by Harbor, which has its own Python


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(file: Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever in it the import stands."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def faults_of(package: str, file: Path) -> list[str]:
    faults = []
    for name in imported(file):
        target = name.partition(".")[0]
        if target in ARROWS and target != package:
            allowed = target in ARROWS[package]
            if target == "model" and package in CONFIG_ONLY:
                allowed = name.startswith("model.config")
            if not allowed:
                faults.append(f"{file} imports {name}")
    return faults


@pytest.mark.parametrize("package", ARROWS)
def test_imports_follow_the_arrows(package):
    assert files_of(package), f"{package} has no files"
    assert [fault for file in files_of(package) for fault in faults_of(package, file)] == []


def test_the_check_finds_a_wrong_arrow(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("def f():\n    import tasks.training.loop\n    from model.moe import Experts\n")
    assert len(faults_of("model", file)) == 1
    assert len(faults_of("tasks", file)) == 0
    assert len(faults_of("flows", file)) == 2
    assert len(faults_of("pipeline", file)) == 2


def test_most_packages_import_without_torch():
    modules = []
    for package in WITHOUT_TORCH:
        for file in files_of(package):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            modules += [name.removesuffix(".__init__")] if name not in ELSEWHERE else []
    code = f"""
import importlib, sys
sys.modules["torch"] = None  # importing torch now raises ImportError
failed = []
for name in {modules!r}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed.append(f"{{name}}: {{error}}")
print("\\n".join(failed))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_the_model_imports_neither_the_pipeline_nor_an_orchestrator():
    for file in files_of("model"):
        roots = {name.partition(".")[0] for name in imported(file)}
        assert not roots & {"prefect", "dvc", "mlflow"}, file
