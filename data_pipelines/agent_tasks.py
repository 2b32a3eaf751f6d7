"""Stage ``agent_tasks``: terminal and SWE tasks for agents, each tried in a real sandbox before it is kept.

    python -m data_pipelines.agent_tasks --recipe tiny

Writes ``tasks/<name>/`` (Harbor folders), ``tasks.jsonl`` (the index), ``reports/<name>.json`` (what the
validator saw), ``rejected/<name>.json`` (drafts that are no task, and why) and ``funnel.json``. A killed
build goes on where it was: verdicts are kept by content in the stage's scratch.
"""

import asyncio
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from data_pipelines.task_building import swe
from data_pipelines.task_building.candidate import Candidate
from data_pipelines.task_building.drafting import ModelDrafter, scripted_candidates
from data_pipelines.task_building.funnel import Funnel, Seen
from data_pipelines.task_building.refining import BROKEN, Outcome, Refiner, index_row, report_of
from data_pipelines.task_building.terminal import catalog
from environments.sandbox.choose import open_backend
from pipeline.errors import UserError
from pipeline.progress import Progress
from pipeline.recipe.data import AgentTasksSection, Drafter
from pipeline.stage import Context, run_stage

ROUND = 8  # candidates of a source that are tried before it is asked for more
PATIENCE = 3  # candidates tried for each task wanted, at most
MAX_BROKEN = 0.1  # share of the candidates that the sandbox may fail to judge


@dataclass(frozen=True)
class Source:
    """Candidates of one family, or of all projects, and how many of them are wanted."""

    wanted: int
    candidates: Iterator[Candidate]


def run(context: Context) -> dict[str, float]:
    """Draft, implement and refine candidates until the recipe has its tasks."""
    section: AgentTasksSection = context.section
    if not section.terminal and not section.swe.tasks:
        return _nothing(context)
    backend = open_backend(section.backend)
    drafter = section.drafter if isinstance(section.drafter, Drafter) else None
    rounds = drafter.rounds if drafter else 0
    refiner = Refiner(backend, context.scratch, section.repeats, section.candidate_seconds, rounds)
    started, dropped = time.monotonic(), Counter()
    builder = Builder(context, refiner, section.at_once or os.cpu_count() or 1)
    model = ModelDrafter(drafter, context.scratch / "cache") if drafter else None
    try:
        asyncio.run(builder.build([*_terminal(context, model), *_swe(context, dropped)]))
    finally:
        if model:
            model.close()
    for reason, count in sorted(dropped.items()):
        builder.funnel.drop("swe", "changes that were no candidate", reason, count)
    kept = sorted(builder.kept, key=lambda outcome: (outcome.candidate.kind, outcome.candidate.name))
    _write(context, kept, builder)
    context.facts.update(backend=backend.name, build_seconds=round(time.monotonic() - started, 1))
    return _metrics(kept, builder)


def _nothing(context: Context) -> dict[str, float]:
    """A recipe that wants no task: an artifact without any, and no sandbox needed."""
    builder = Builder(context, None, 1)
    _write(context, [], builder)
    return _metrics([], builder)


def shares(section: AgentTasksSection) -> dict[str, int]:
    """Terminal tasks by family, in proportion to the weights, adding up to ``section.terminal``."""
    total = sum(section.families.values())
    exact = {name: section.terminal * weight / total for name, weight in section.families.items() if weight}
    counts = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_rest[: section.terminal - sum(counts.values())]:
        counts[name] += 1
    return {name: count for name, count in counts.items() if count}


def _terminal(context: Context, model: ModelDrafter | None) -> Iterator[Source]:
    if not context.section.terminal:
        return
    seed = context.recipe.data_seed
    for family, wanted in shares(context.section).items():
        by_model = model is not None and not catalog.find(family).heldout
        drafts = model.candidates(family, seed) if by_model else scripted_candidates(family, seed)
        yield Source(wanted, islice(drafts, PATIENCE * wanted))


def _swe(context: Context, dropped: Counter) -> Iterator[Source]:
    """What is fetched and tried for them is kept beyond this recipe, in the ``cache`` of the scratch."""
    section = context.section.swe
    if section.tasks and section.projects:
        backend = open_backend(context.section.backend)  # its own: it runs in a thread and loop of its own
        cache = context.scratch / "cache"
        found = swe.candidates(section, cache, context.recipe.data_seed, backend, dropped)
        yield Source(section.tasks, _told(found, section.tasks, context.progress))


def _told(found: Iterator[Candidate], wanted: int, progress: Progress) -> Iterator[Candidate]:
    """Each has taken two runs of a project's tests: minutes."""
    for number, candidate in enumerate(found, 1):
        progress.update("fixes", number, max(number, wanted), "change", candidate.name)
        yield candidate


class Builder:
    """Turns sources into kept outcomes, several candidates at once; the result does not depend on which of
    them is done first.
    """

    def __init__(self, context: Context, refiner: Refiner | None, at_once: int) -> None:
        self.context, self.refiner, self.at_once = context, refiner, at_once
        self.funnel, self.kept, self.dropped = Funnel(), [], []
        self.wanted = self.tried = self.broken = 0

    async def build(self, sources: list[Source]) -> None:
        self._slots = asyncio.Semaphore(self.at_once)
        self.wanted = sum(source.wanted for source in sources)
        await asyncio.gather(*map(self._exhaust, sources))
        if self.broken > max(1, MAX_BROKEN * self.tried):
            raise UserError(
                f"{BROKEN} for {self.broken} of {self.tried} candidates ({self._why}): mend it first"
            )

    async def _exhaust(self, source: Source) -> None:
        """Rounds of as many candidates as are still wanted, until there are enough or no more."""
        seen, kept = Seen(), 0
        while kept < source.wanted:
            batch = await asyncio.to_thread(_take, source.candidates, min(source.wanted - kept, ROUND))
            if not batch:
                return
            prepared = await asyncio.gather(*(self._prepare(candidate) for candidate in batch))
            prepared = [_unless_seen(outcome, seen) for outcome in prepared]
            for outcome in await asyncio.gather(*(self._refine(outcome) for outcome in prepared)):
                outcome = _unless_seen(outcome, seen) if outcome.round > 1 else outcome
                kept += not outcome.reason
                self._count(outcome)

    async def _prepare(self, candidate: Candidate) -> Outcome:
        async with self._slots:
            return await asyncio.to_thread(self.refiner.prepare, candidate)

    async def _refine(self, outcome: Outcome) -> Outcome:
        async with self._slots:
            outcome = await self.refiner.refine(outcome)
        self.tried += 1
        note = f"{self.tried} tried, {outcome.candidate.name}"
        self.context.progress.update("build", self.tried, max(self.wanted, self.tried), "task", note)
        return outcome

    def _count(self, outcome: Outcome) -> None:
        candidate = outcome.candidate
        if outcome.reason == BROKEN:
            self.broken, self._why = self.broken + 1, outcome.detail
        if outcome.reason:
            self.dropped.append(outcome)
            self.funnel.reject(
                candidate.kind, candidate.family, candidate.name, outcome.reason, outcome.detail
            )
        else:
            self.kept.append(outcome)
            self.funnel.keep(candidate.kind, candidate.family)


def _take(candidates: Iterator[Candidate], count: int) -> list[Candidate]:
    return list(islice(candidates, count))


def _unless_seen(outcome: Outcome, seen: Seen) -> Outcome:
    if outcome.reason:
        return outcome
    candidate = outcome.candidate
    found = seen.find(candidate.family, outcome.instruction, outcome.content)
    seen.add(candidate.family, candidate.name, outcome.instruction, outcome.content)
    return outcome.rejected(*found) if found else outcome


def _write(context: Context, kept: list[Outcome], builder: Builder) -> None:
    for name in ("tasks", "reports", "rejected"):
        (context.out / name).mkdir()
    with open(context.out / "tasks.jsonl", "w", encoding="utf-8") as file:
        for outcome in kept:
            name = outcome.candidate.name
            shutil.copytree(outcome.folder, context.out / "tasks" / name, symlinks=True)
            _dump(context.out / "reports" / f"{name}.json", report_of(outcome))
            file.write(json.dumps(index_row(outcome), ensure_ascii=False) + "\n")
    for outcome in builder.dropped:
        record = {
            "name": outcome.candidate.name, "kind": outcome.candidate.kind,
            "family": outcome.candidate.family, "reason": outcome.reason, "detail": outcome.detail,
            "provenance": outcome.candidate.provenance, "draft": outcome.candidate.draft,
        }  # fmt: skip
        _dump(context.out / "rejected" / f"{outcome.candidate.name}.json", record)
    _dump(context.out / "funnel.json", builder.funnel.to_json())


def _dump(path, content) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _metrics(kept: list[Outcome], builder: Builder) -> dict[str, float]:
    return {
        "tasks/kept": len(kept),
        "tasks/terminal": builder.funnel.kept("terminal"),
        "tasks/swe": builder.funnel.kept("swe"),
        "tasks/heldout": sum(outcome.candidate.heldout for outcome in kept),
        "tasks/families": len({(outcome.candidate.kind, outcome.candidate.family) for outcome in kept}),
        "tasks/rejected": builder.funnel.rejected(),
        "tasks/short": builder.wanted - len(kept),  # where candidates ran out
    }


if __name__ == "__main__":
    run_stage("agent_tasks", run)
