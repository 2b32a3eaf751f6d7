"""The families of scripted terminal tasks, and the candidates that come out of seeds."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate
from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.archives import nested_archives, restore_files
from data_pipelines.task_building.terminal.families.binaries import binary_records
from data_pipelines.task_building.terminal.families.databases import database_report
from data_pipelines.task_building.terminal.families.encodings import convert_texts
from data_pipelines.task_building.terminal.families.leaks import find_tokens
from data_pipelines.task_building.terminal.families.logs import log_report
from data_pipelines.task_building.terminal.families.makefiles import fix_makefile
from data_pipelines.task_building.terminal.families.modes import repair_links, set_modes
from data_pipelines.task_building.terminal.families.programs import write_program
from data_pipelines.task_building.terminal.families.repositories import (
    find_commit,
    merge_branch,
    restore_deleted,
)
from data_pipelines.task_building.terminal.families.schedules import cron_times
from data_pipelines.task_building.terminal.families.scripts import fix_script
from data_pipelines.task_building.terminal.families.settings import migrate_settings
from data_pipelines.task_building.terminal.families.tables import table_clean, table_join
from data_pipelines.task_building.terminal.families.trees import remove_copies, rename_word
from data_pipelines.task_building.terminal.folder import write_folder
from pipeline.errors import UserError

GENERATOR = "data_pipelines.task_building.terminal, version 1"
LICENCE = "Apache-2.0"  # of this project: text and data of these tasks are made by it


@dataclass(frozen=True)
class Family:
    draw: Callable[[random.Random], TerminalDraft]
    category: str
    heldout: bool = False  # kept for evaluation as a whole


FAMILIES: dict[str, Family] = {
    "log-report": Family(log_report, "data"),
    "table-join": Family(table_join, "data"),
    "table-clean": Family(table_clean, "data"),
    "database-report": Family(database_report, "data"),
    "binary-records": Family(binary_records, "data"),
    "rename-word": Family(rename_word, "files"),
    "remove-copies": Family(remove_copies, "files"),
    "set-modes": Family(set_modes, "files"),
    "restore-files": Family(restore_files, "files"),
    "convert-texts": Family(convert_texts, "files"),
    "find-commit": Family(find_commit, "git"),
    "restore-deleted": Family(restore_deleted, "git"),
    "fix-script": Family(fix_script, "programs"),
    "fix-makefile": Family(fix_makefile, "programs"),
    "write-program": Family(write_program, "programs"),
    "migrate-settings": Family(migrate_settings, "administration"),
    "find-tokens": Family(find_tokens, "security"),
    "repair-links": Family(repair_links, "files", heldout=True),
    "nested-archives": Family(nested_archives, "files", heldout=True),
    "merge-branch": Family(merge_branch, "git", heldout=True),
    "cron-times": Family(cron_times, "administration", heldout=True),
}


def find(name: str) -> Family:
    """The family of that name. Raises ``UserError`` with the names that there are."""
    if name not in FAMILIES:
        raise UserError(f"there is no family {name!r} of terminal tasks (known: {', '.join(FAMILIES)})")
    return FAMILIES[name]


def draw(family: str, seed: int) -> TerminalDraft:
    """The draft of that seed, the same every time."""
    return find(family).draw(random.Random(f"terminal/{family}/{seed}"))


def scripted(family: str, seed: int) -> Candidate:
    """The candidate of that seed."""
    draft = draw(family, seed)
    return candidate(draft, family, f"{family}-{seed}", f"{GENERATOR}, family {family}, seed {seed}", LICENCE)


def candidate(draft: TerminalDraft, family: str, name: str, provenance: str, licence: str) -> Candidate:
    return Candidate(
        name=name, kind="terminal", family=family, heldout=find(family).heldout, provenance=provenance,
        licence=licence, draft=draft.to_record(),
        write=lambda folder: write_draft(draft, folder, family, name, provenance, licence),
    )  # fmt: skip


def write_draft(
    draft: TerminalDraft, folder: Path, family: str, name: str, provenance: str, licence: str
) -> None:
    """Write the Harbor folder of a draft with what its metadata says of where it comes from."""
    kind = find(family)
    metadata = {
        "kind": "terminal", "category": kind.category, "family": family, "heldout": kind.heldout,
        "provenance": provenance, "licence": licence,
    }  # fmt: skip
    write_folder(draft, folder, name, metadata)
