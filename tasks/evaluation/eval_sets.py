"""What the suites are asked on, read from the ``eval_sets`` artifact and cut to the recipe's numbers."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from environments.interface import Task
from evals.attempts import Item
from evals.bits_per_byte import BitsPerByte
from evals.documents import Document
from evals.environments import Environments
from evals.long_context import LongContext, LongContextItem
from evals.sampled import SampledEnvironments
from evals.sparse_attention import SparseAttention
from evals.suite import Suite
from pipeline.errors import UserError
from pipeline.recipe.evaluation import EvaluateSection
from tasks.training.stages import BASE_STAGES

# Characters that a token stands for at most, nearly always: a longer document reaches the wanted length.
CHARACTERS_PER_TOKEN = 6
SAMPLED_MODE = "interleaved"  # in which reasoning is trained


class EvalSets:
    """The evaluation sets of a recipe; gives each checkpoint its suites."""

    def __init__(self, folder: Path, section: EvaluateSection):
        self.section = section
        rows = pq.read_table(folder / "heldout.parquet", columns=["id", "source", "text"]).to_pylist()
        documents = sorted((Document(**row) for row in rows), key=lambda document: document.id)
        short = _first_of_each(documents, lambda d: d.source, section.documents_per_source)
        self.short = [_excerpt(d, CHARACTERS_PER_TOKEN * section.length) for d in short]
        characters = CHARACTERS_PER_TOKEN * section.long_length
        long = [d for d in documents if len(d.text) >= characters][: section.long_documents]
        self.long = [_excerpt(d, characters) for d in long]
        if len(self.long) < 2:
            raise UserError(
                f"{folder / 'heldout.parquet'} has {len(self.long)} documents of {characters} characters or "
                "more: lower evaluate.long_length or raise eval_sets.heldout_fraction"
            )
        items = [_long_item(row) for row in _read_lines(folder / "longcontext.jsonl")]
        self.long_context = _first_of_each(items, lambda i: (i.task, i.length), section.long_context_items)
        self.tasks = [Item(Task.from_record(row), row["mode"]) for row in _read_lines(folder / "tasks.jsonl")]

    def suites(self, checkpoint: str) -> list[Suite]:
        """Bits per byte stands first. Checkpoints that cannot chat yet are asked few tasks."""
        section, shown = self.section, self.section.samples_kept
        base = checkpoint in BASE_STAGES
        count = section.base_items_per_family if base else section.items_per_family
        new_tokens = section.base_max_new_tokens if base else section.max_new_tokens
        suites: list[Suite] = [
            BitsPerByte(self.short, section.length, shown),
            SparseAttention(self.long, section.long_length),
            LongContext(self.long_context, section.long_context_new_tokens, shown),
            Environments(self._tasks(count), new_tokens, samples=shown),
        ]
        if not base and section.sampled_items_per_family:
            tasks = [i for i in self._tasks(section.sampled_items_per_family) if i.mode == SAMPLED_MODE]
            suites.append(SampledEnvironments(tasks, section.samples_per_task, new_tokens))
        return suites

    def _tasks(self, count: int) -> list[Item]:
        """Of each family and mode ``count``, the same tasks in every mode."""
        return _first_of_each(self.tasks, lambda i: (i.task.environment, i.task.family, i.mode), count)


def _excerpt(document: Document, characters: int) -> Document:
    """A stretch from a line start at a place that the document's id decides: beginnings are all alike."""
    room = max(0, len(document.text) - characters)
    place = int(room * int(document.id[:8], 16) / 2**32)
    start = document.text.rfind("\n", 0, place) + 1
    return Document(document.id, document.source, document.text[start : start + characters])


def _first_of_each(items: list, group: Callable[[Any], Any], count: int) -> list:
    """The first ``count`` items of each group, in order."""
    seen: Counter = Counter()
    kept = []
    for item in items:
        seen[group(item)] += 1
        if seen[group(item)] <= count:
            kept.append(item)
    return kept


def _read_lines(path: Path) -> list[dict]:
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except ValueError as error:
        raise UserError(f"{path} is not JSON lines ({error}): run stage eval_sets again") from error


def _long_item(row: dict) -> LongContextItem:
    answers = tuple(row["answers"])
    return LongContextItem(row["id"], row["task"], row["length"], row["prompt"], answers)
