"""From two consecutive releases to tasks: their tests are run, what repeats decides what a task asks for."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.swe.folder import write_folder
from data_pipelines.task_building.swe.hunks import Reversal, reversals, unified
from data_pipelines.task_building.swe.instruction import RELEASE, REVERSAL, instruction, release_note
from data_pipelines.task_building.swe.pair import (
    Asked,
    Pair,
    asked,
    candidate,
    metadata,
    name_of,
    test_functions,
)
from data_pipelines.task_building.swe.project import code_files
from data_pipelines.task_building.swe.running import Outcome, Runner
from data_pipelines.task_building.swe.tests_text import without_functions
from data_pipelines.task_building.swe.whole import Change, of_change
from pipeline.recipe.data import SweSection

MOST_REPAIRED = 10  # tests that one hunk may break: more is no small fault
CHANGELOG = ("CHANGE", "HISTORY", "NEWS", "RELEASE")


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
            values = {"version": pair.old.version, "note": text}
            change = Change(pair, "release", name_of(pair, "release"), RELEASE, values)
            yield await of_change(change, fixed, runner)
    if "reversal" in section.kinds and section.reversals != 0:
        async for found in _reversals(pair, section, fixed, runner, seed, note):
            yield found


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
            name = name_of(pair, _digest(hunk))
            write = partial(_write_reversal, pair=pair, hunk=hunk, wanted=wanted, runner=runner, name=name)
            yield candidate(pair, name, "reversal", write, file=hunk.file, line=hunk.line)
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
    functions = test_functions(pair, wanted)
    text = instruction(REVERSAL, project, functions, fix, version=pair.old.version)
    changes: dict[str, str | None] = {hunk.file: hunk.broken, **_old_changelogs(pair)}
    for file in {function.file for function in functions}:
        names = {function.name for function in functions if function.file == file}
        changes[file] = without_functions((pair.new_tree / file).read_text(encoding="utf-8"), names)
    write_folder(
        folder, project, pair.new_tree, changes, text, fix, pair.tests, wanted.repair, wanted.keep,
        name, metadata(pair, "reversal"),
    )  # fmt: skip


def _note(pair: Pair) -> str | None:
    changelog = pair.new_tree / (pair.project.changelog or "-")
    return (
        release_note(changelog.read_text(encoding="utf-8"), pair.new.version) if changelog.is_file() else None
    )


def _old_changelogs(pair: Pair) -> dict[str, str | None]:
    """Files that tell of changes, as they were before: the new ones describe the fix."""
    changes: dict[str, str | None] = {}
    for path in sorted(pair.new_tree.rglob("*")):
        if path.is_file() and path.suffix != ".py" and path.name.upper().startswith(CHANGELOG):
            name = path.relative_to(pair.new_tree).as_posix()
            before = pair.old_tree / name
            changes[name] = before.read_text(encoding="utf-8") if before.is_file() else None
    return changes


def _digest(hunk: Reversal) -> str:
    return hashlib.sha256(f"{hunk.file} {hunk.broken}".encode()).hexdigest()[:8]
