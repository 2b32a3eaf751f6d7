"""A change as a whole as one task: the tests after it, on the code before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate
from data_pipelines.task_building.swe.folder import write_folder
from data_pipelines.task_building.swe.hunks import unified
from data_pipelines.task_building.swe.instruction import instruction
from data_pipelines.task_building.swe.pair import Asked, Pair, asked, candidate, metadata, test_functions
from data_pipelines.task_building.swe.project import code_files
from data_pipelines.task_building.swe.running import Outcome, Runner


@dataclass(frozen=True)
class Change:
    pair: Pair
    kind: str
    name: str
    text: str  # of the instruction, see ``instruction.instruction``
    values: Mapping[str, str]  # that fill it


async def of_change(change: Change, fixed: Outcome, runner: Runner, **draft) -> Candidate:
    """The task of a change. ``fixed``: what its tests say of its own code; ``draft`` goes into the record."""
    pair = change.pair
    old, new = code_files(pair.project, pair.old_tree), code_files(pair.project, pair.new_tree)
    before = {name: old.get(name) for name in old.keys() | new.keys()}
    wanted = asked(fixed, await runner.run(pair.new_tree, pair.tests, before))
    write = partial(_write, change=change, wanted=wanted, runner=runner)
    return candidate(pair, change.name, change.kind, write, **draft)


def _write(folder: Path, change: Change, wanted: Asked, runner: Runner) -> None:
    pair, project = change.pair, change.pair.project
    fix = unified(code_files(project, pair.old_tree), code_files(project, pair.new_tree))
    runner.check_hidden(fix)
    text = instruction(change.text, project, test_functions(pair, wanted), fix, **change.values)
    write_folder(
        folder, project, pair.old_tree, {}, text, fix, pair.tests, wanted.repair, wanted.keep,
        change.name, metadata(pair, change.kind),
    )  # fmt: skip
