"""What the suites are asked on, read from the ``eval_sets`` artifact and cut to the recipe's numbers."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from environments.interface import Task
from environments.sandbox.choose import open_backend
from environments.snippets import Runner, runner
from evals.answers import OracleAnswers
from evals.attempts import Item
from evals.bits_per_byte import BitsPerByte
from evals.documents import Document
from evals.environments import Environments
from evals.humaneval import HumanEval, Problem
from evals.long_context import LongContext, LongContextItem
from evals.ruler import Ruler, RulerQuestion
from evals.sampled import SampledEnvironments
from evals.sparse_attention import SparseAttention
from evals.suite import Suite
from pipeline.errors import UserError
from pipeline.recipe.evaluation import EvaluateSection
from tasks.training.stages import BASE_STAGES

# Characters that a token stands for at most, nearly always: a longer document reaches the wanted length.
CHARACTERS_PER_TOKEN = 6
ANSWERED_ITEMS = 2  # of a family
SCRIPTED_ITEMS = 3  # of a family and mode, and of a RULER task and length
SAMPLED_MODE = "interleaved"  # in which reasoning is trained


class EvalSets:
    """The evaluation sets of a recipe; gives each checkpoint its suites."""

    def __init__(self, folder: Path, section: EvaluateSection):
        self.section = section
        self.left_out: dict[str, str] = {}  # suite -> why it cannot be run here
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
        items = [LongContextItem(**_long_item(row)) for row in _read_lines(folder / "longcontext.jsonl")]
        self.long_context = _first_of_each(items, lambda i: (i.task, i.length), section.long_context_items)
        self.questions = [
            RulerQuestion(**_long_item(row), match=row["match"])
            for row in _read_lines(folder / "ruler.jsonl")
        ]
        problems = [Problem(**row) for row in _read_lines(folder / "humaneval.jsonl")]
        self.problems = self._runnable(_spread(problems, section.humaneval_problems))
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
            Ruler(self._ruler(section.ruler_items), section.ruler_new_tokens, shown),
            Environments(self._tasks(count), new_tokens, samples=shown),
        ]
        if self.problems:
            samples, length = section.humaneval_samples, section.humaneval_new_tokens
            suites.append(HumanEval(self.problems, samples, length, _sandboxes))
        if not base:
            suites.append(OracleAnswers(self._in_one_mode(ANSWERED_ITEMS)))
        if not base and section.sampled_items_per_family:
            tasks = self._in_one_mode(section.sampled_items_per_family)
            suites.append(SampledEnvironments(tasks, section.samples_per_task, new_tokens))
        return suites

    def suites_of_scripts(self) -> list[Suite]:
        """Those of a checkpoint, with some items of each kind: one script gives an item another's answer."""
        own: dict[type, Suite] = {
            Environments: Environments(self._tasks(SCRIPTED_ITEMS), 1),
            Ruler: Ruler(self._ruler(SCRIPTED_ITEMS), self.section.ruler_new_tokens),
        }
        suites = self.suites(BASE_STAGES[0])
        return [own.get(type(suite), suite) for suite in suites if not isinstance(suite, SparseAttention)]

    def _runnable(self, problems: list[Problem]) -> list[Problem]:
        """Programs of a policy run in a real sandbox or not at all."""
        if problems:
            try:
                open_backend()
            except UserError as error:
                self.left_out["humaneval"] = str(error)
                return []
        return problems

    def _in_one_mode(self, count: int) -> list[Item]:
        return [item for item in self._tasks(count) if item.mode == SAMPLED_MODE]

    def _ruler(self, count: int) -> list[RulerQuestion]:
        return _first_of_each(self.questions, lambda i: (i.task, i.length), count)

    def _tasks(self, count: int) -> list[Item]:
        """Of each family and mode ``count``, the same tasks in every mode."""
        return _first_of_each(self.tasks, lambda i: (i.task.environment, i.task.family, i.mode), count)


def _sandboxes() -> Runner:
    """One for each suite: several run at once, each in an event loop of its own."""
    return runner(open_backend())


def _spread(problems: list[Problem], count: int) -> list[Problem]:
    """Over the whole set, whose beginning is easier than its end."""
    count = min(count, len(problems))
    return [problems[number * len(problems) // count] for number in range(count)]


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


def _long_item(row: dict) -> dict:
    return {
        **{name: row[name] for name in ("id", "task", "length", "prompt")}, "answers": tuple(row["answers"]),
    }  # fmt: skip
