"""What is known of a project, and its releases unpacked as folders without what is not part of the work."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.task_building.swe import sdists

# Instructions to other agents, editors' and services' settings: no part of the code.
LEFT_OUT = (".*", "AGENTS.md", "CLAUDE.md", "GEMINI.md", "uv.lock", "PKG-INFO", "*.egg-info")
KEPT = (".coveragerc",)
PYTEST = ("iniconfig==2.3.1", "packaging==26.4", "pluggy==1.7.0", "pygments==2.21.0", "pytest==9.2.0")


@dataclass(frozen=True)
class Release:
    version: str
    sha256: str  # of the source distribution


@dataclass(frozen=True)
class Project:
    """A pure-Python project whose source distributions hold its tests. Paths are from its top folder."""

    name: str  # as the package index has it
    licence: str  # SPDX
    package: str  # the code's folder or file
    releases: tuple[Release, ...]  # consecutive, the oldest first
    paths: tuple[str, ...] = (".",)  # of the import path
    tests: tuple[str, ...] = ("tests",)  # files or folders with tests, as pytest is given them
    support: tuple[str, ...] = ()  # other files that the tests need and the agent shall not change
    config: str | None = None  # the file with pytest's settings
    changelog: str | None = None
    requirements: tuple[str, ...] = ()  # pinned, beside pytest
    options: tuple[str, ...] = ()  # for pytest: what is left out
    heldout: bool = False  # never trained on

    @property
    def owned(self) -> tuple[str, ...]:
        """What is put back before grading."""
        return (*self.tests, *self.support, *([self.config] if self.config else []))

    @property
    def workdir(self) -> str:
        return f"/app/{self.name.lower()}"

    @property
    def module(self) -> str:
        """The name under which it is imported."""
        return Path(self.package).name.removesuffix(".py")

    @property
    def pins(self) -> tuple[str, ...]:
        return (*PYTEST, *self.requirements)


def release_tree(project: Project, release: Release, scratch: Path) -> Path:
    """The unpacked release in ``scratch``, fetched and cleaned where it is not there."""
    tree = scratch / "releases" / f"{project.name}-{release.version}-{release.sha256[:12]}"
    if not tree.is_dir():
        archive = sdists.fetch(project.name, release.version, release.sha256, scratch / "downloads")
        draft = tree.with_name(tree.name + ".draft")
        draft.parent.mkdir(parents=True, exist_ok=True)
        sdists.unpack(archive, draft)
        _clean(draft)
        draft.replace(tree)
    return tree


def _clean(tree: Path) -> None:
    for pattern in LEFT_OUT:
        for path in tree.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in KEPT:
                path.unlink()


def code_files(project: Project, tree: Path) -> dict[str, str]:
    """The project's own Python files, tests inside the package left out: text by path."""
    top = tree / project.package
    files = [top] if top.is_file() else sorted(top.rglob("*.py"))
    found = {}
    for file in files:
        name = file.relative_to(tree).as_posix()
        if not any(name == test or name.startswith(test + "/") for test in project.tests + project.support):
            found[name] = file.read_text(encoding="utf-8")
    return found
