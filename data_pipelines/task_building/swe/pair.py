"""Two states of a project, what the tests say of both, and the parts that every kind of task is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.swe.project import Project, Release, release_tree
from data_pipelines.task_building.swe.running import Outcome, owned_archive
from data_pipelines.task_building.swe.tests_text import TestFunction, find_functions, function_of
from environments.swe.grading import PASSED, SKIPPED, XFAIL

MOST_FUNCTIONS = 12  # test functions of a change: more is too mixed for one task


@dataclass(frozen=True)
class Pair:
    """A project before and after a change: a release and the next one, or one without and with a patch."""

    project: Project
    old: Release
    new: Release
    old_tree: Path
    new_tree: Path
    tests: bytes  # those of the state after the change
    source: str  # in words, for provenance


@dataclass(frozen=True)
class Asked:
    """What must pass: tests that a state breaks, and tests that both states hold."""

    repair: list[str]
    keep: list[str]


def make_pair(project: Project, old: Release, new: Release, scratch: Path) -> Pair:
    """Fetch and unpack two releases. Raises ``UserError`` where the index does not answer."""
    old_tree, new_tree = (release_tree(project, release, scratch) for release in (old, new))
    source = f"{project.name} {old.version} to {new.version}"
    return Pair(project, old, new, old_tree, new_tree, owned_archive(project, new_tree), source)


def asked(fixed: Outcome, broken: Outcome) -> Asked:
    """Tests with one and the same status in all runs of both states; what is flaky in either is left out."""
    good, bad = fixed.stable, broken.stable
    seldom = fixed.flaky | broken.flaky
    repair = [
        test for test, status in good.items()
        if status in (PASSED, XFAIL) and test not in seldom and bad.get(test) not in (PASSED, XFAIL, SKIPPED)
    ]  # fmt: skip
    keep = [
        test for test, status in good.items()
        if status in (PASSED, XFAIL, SKIPPED) and bad.get(test) in (PASSED, XFAIL, SKIPPED)
    ]  # fmt: skip
    return Asked(sorted(repair), sorted(keep))


def test_functions(pair: Pair, wanted: Asked) -> list[TestFunction]:
    """The functions behind the tests to repair. Raises ``Rejected`` where they make no task."""
    if not wanted.repair:
        raise Rejected("no test fails before and passes after")
    files = {}
    for file in {function_of(test)[0] for test in wanted.repair}:
        path = pair.new_tree / file
        files[file] = path.read_text(encoding="utf-8") if path.is_file() else ""
    functions = find_functions(wanted.repair, files)
    if functions is None:
        raise Rejected("a test is not written where its name says")
    if len(functions) > MOST_FUNCTIONS:
        raise Rejected("too many tests for one task")
    return functions


def candidate(pair: Pair, name: str, kind: str, write: Callable[[Path], None], **draft) -> Candidate:
    project = pair.project
    return Candidate(
        name=name, kind="swe", family=f"swe-{project.name.lower()}", heldout=project.heldout,
        provenance=f"{pair.source}, {kind}", licence=project.licence, write=write,
        draft={"kind": kind, "old": pair.old.version, "new": pair.new.version, **draft},
    )  # fmt: skip


def metadata(pair: Pair, kind: str) -> Mapping[str, object]:
    project = pair.project
    return {
        "family": f"swe-{project.name.lower()}", "kind": kind, "heldout": project.heldout,
        "licence": project.licence, "source": pair.source,
    }  # fmt: skip


def name_of(pair: Pair, *parts: str) -> str:
    """A task's name: project, version and what tells it from others."""
    return "-".join([pair.project.name.lower(), pair.new.version.replace(".", "-"), *parts])
