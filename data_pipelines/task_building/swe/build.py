"""From two consecutive releases to tasks: their tests are run, what repeats decides what a task asks for."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.swe.folder import write_folder
from data_pipelines.task_building.swe.hunks import Reversal, reversals, unified
from data_pipelines.task_building.swe.instruction import RELEASE, REVERSAL, instruction, release_note
from data_pipelines.task_building.swe.project import Project, Release, code_files, release_tree
from data_pipelines.task_building.swe.running import Outcome, Runner, owned_archive
from data_pipelines.task_building.swe.tests_text import find_functions, function_of, without_functions
from environments.swe.grading import PASSED, SKIPPED, XFAIL
from pipeline.recipe.data import SweSection

MOST_REPAIRED = 10  # tests that one hunk may break: more is no small fault
MOST_FUNCTIONS = 12  # test functions of a release: more is too mixed for one task
CHANGELOG = ("CHANGE", "HISTORY", "NEWS", "RELEASE")


@dataclass(frozen=True)
class Pair:
    """A release and the next one."""

    project: Project
    old: Release
    new: Release
    old_tree: Path
    new_tree: Path
    tests: bytes  # the new release's


@dataclass(frozen=True)
class Asked:
    """What must pass: tests that a state breaks, and tests that both states hold."""

    repair: list[str]
    keep: list[str]


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


async def of_pair(
    pair: Pair, section: SweSection, runner: Runner, seed: int, note: Callable[[str], None]
) -> AsyncIterator[Candidate]:
    """The candidates of a pair of releases. ``note`` is told, in a few words, why a change is none."""
    fixed = await runner.run(pair.new_tree, pair.tests)
    if not fixed.stable:
        raise Rejected("no test of the release runs twice alike")
    if "release" in section.kinds:
        if (text := _note(pair)) is None:
            note("no note on the release")
        else:
            yield await _release(pair, text, fixed, runner)
    if "reversal" in section.kinds and section.reversals != 0:
        async for candidate in _reversals(pair, section, fixed, runner, seed, note):
            yield candidate


async def _release(pair: Pair, note: str, fixed: Outcome, runner: Runner) -> Candidate:
    old, new = code_files(pair.project, pair.old_tree), code_files(pair.project, pair.new_tree)
    broken = await runner.run(
        pair.new_tree, pair.tests, {name: old.get(name) for name in old.keys() | new.keys()}
    )
    wanted = asked(fixed, broken)
    name = f"{pair.project.name.lower()}-{_dashed(pair.new.version)}-release"
    return _candidate(
        pair,
        name,
        "release",
        partial(_write_release, pair=pair, note=note, wanted=wanted, runner=runner, name=name),
    )


def _write_release(folder: Path, pair: Pair, note: str, wanted: Asked, runner: Runner, name: str) -> None:
    project = pair.project
    old, new = code_files(project, pair.old_tree), code_files(project, pair.new_tree)
    fix = unified(old, new)
    runner.check_hidden(fix)
    functions = _functions(pair, wanted)
    text = instruction(RELEASE, project, functions, fix, version=pair.old.version, note=note)
    write_folder(
        folder, project, pair.old_tree, {}, text, fix, pair.tests, wanted.repair, wanted.keep,
        name, _metadata(pair, "release"),
    )  # fmt: skip


async def _reversals(pair, section, fixed, runner, seed, note) -> AsyncIterator[Candidate]:
    new = code_files(pair.project, pair.new_tree)
    hunks = list(reversals(code_files(pair.project, pair.old_tree), new))
    random.Random(f"{pair.project.name} {pair.new.version} {seed}").shuffle(hunks)
    found = 0
    size = 8  # tried at once: as many as keep all cores busy for some seconds
    for start in range(0, len(hunks), size):
        tried = await asyncio.gather(
            *(_try(pair, hunk, fixed, runner) for hunk in hunks[start : start + size])
        )
        for hunk, wanted in zip(hunks[start : start + size], tried, strict=True):
            if isinstance(wanted, str):
                note(wanted)
                continue
            name = f"{pair.project.name.lower()}-{_dashed(pair.new.version)}-{_digest(hunk)}"
            write = partial(_write_reversal, pair=pair, hunk=hunk, wanted=wanted, runner=runner, name=name)
            yield _candidate(pair, name, "reversal", write, file=hunk.file, line=hunk.line)
            found += 1
            if section.reversals is not None and found >= section.reversals:
                return


async def _try(pair: Pair, hunk: Reversal, fixed: Outcome, runner: Runner) -> Asked | str:
    """What the hunk's reversal breaks, or why it makes no task: one run sorts most out."""
    changes = {hunk.file: hunk.broken}
    for repeats in (1, len(fixed.runs)):
        wanted = asked(fixed, await runner.run(pair.new_tree, pair.tests, changes, repeats))
        if not wanted.repair:
            return "no test notices the hunk" if repeats == 1 else "only flaky tests notice the hunk"
        if len(wanted.repair) > MOST_REPAIRED:
            return "the hunk breaks too many tests"
    return wanted


def _write_reversal(
    folder: Path, pair: Pair, hunk: Reversal, wanted: Asked, runner: Runner, name: str
) -> None:
    project, new = pair.project, code_files(pair.project, pair.new_tree)
    fix = unified({hunk.file: hunk.broken}, {hunk.file: new[hunk.file]})
    runner.check_hidden(fix)
    functions = _functions(pair, wanted)
    text = instruction(REVERSAL, project, functions, fix, version=pair.old.version)
    changes: dict[str, str | None] = {hunk.file: hunk.broken, **_old_changelogs(pair)}
    for file in {function.file for function in functions}:
        names = {function.name for function in functions if function.file == file}
        changes[file] = without_functions((pair.new_tree / file).read_text(encoding="utf-8"), names)
    write_folder(
        folder, project, pair.new_tree, changes, text, fix, pair.tests, wanted.repair, wanted.keep,
        name, _metadata(pair, "reversal"),
    )  # fmt: skip


def _note(pair: Pair) -> str | None:
    changelog = pair.new_tree / (pair.project.changelog or "-")
    return (
        release_note(changelog.read_text(encoding="utf-8"), pair.new.version) if changelog.is_file() else None
    )


def _functions(pair: Pair, wanted: Asked) -> list:
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


def _old_changelogs(pair: Pair) -> dict[str, str | None]:
    """Files that tell of changes, as they were before: the new ones describe the fix."""
    changes: dict[str, str | None] = {}
    for path in sorted(pair.new_tree.rglob("*")):
        if path.is_file() and path.suffix != ".py" and path.name.upper().startswith(CHANGELOG):
            name = path.relative_to(pair.new_tree).as_posix()
            before = pair.old_tree / name
            changes[name] = before.read_text(encoding="utf-8") if before.is_file() else None
    return changes


def _candidate(pair: Pair, name: str, kind: str, write: Callable[[Path], None], **draft) -> Candidate:
    project = pair.project
    provenance = (
        f"{project.name} {pair.old.version} to {pair.new.version}, {kind}, from its source distributions"
    )
    return Candidate(
        name=name, kind="swe", family=f"swe-{project.name.lower()}", heldout=project.heldout,
        provenance=provenance, licence=project.licence, write=write,
        draft={"kind": kind, "old": pair.old.version, "new": pair.new.version, **draft},
    )  # fmt: skip


def _metadata(pair: Pair, kind: str) -> Mapping[str, object]:
    project = pair.project
    return {
        "family": f"swe-{project.name.lower()}", "kind": kind, "heldout": project.heldout,
        "licence": project.licence, "source": f"{project.name} {pair.old.version} to {pair.new.version}",
    }  # fmt: skip


def make_pair(project: Project, old: Release, new: Release, scratch: Path) -> Pair:
    """Fetch and unpack two releases. Raises ``UserError`` where the index does not answer."""
    old_tree, new_tree = (release_tree(project, release, scratch) for release in (old, new))
    return Pair(project, old, new, old_tree, new_tree, owned_archive(project, new_tree))


def _dashed(version: str) -> str:
    return version.replace(".", "-")


def _digest(hunk: Reversal) -> str:
    return hashlib.sha256(f"{hunk.file} {hunk.broken}".encode()).hexdigest()[:8]
