"""All candidates of a recipe, project by project: lazily, so that whoever has enough can stop."""

import asyncio
import contextlib
import logging
import queue
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.swe.apt_sources import AptSources
from data_pipelines.task_building.swe.build import of_pair
from data_pipelines.task_building.swe.debian import PACKAGES, of_package
from data_pipelines.task_building.swe.pair import make_pair
from data_pipelines.task_building.swe.project import Project
from data_pipelines.task_building.swe.projects import PROJECTS
from data_pipelines.task_building.swe.running import Runner
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Backend
from pipeline.errors import UserError
from pipeline.recipe.data import SweSection

log = logging.getLogger(__name__)
_END = object()


def candidates(
    section: SweSection,
    scratch: Path,
    seed: int,
    backend: Backend | None = None,
    dropped: Counter | None = None,
) -> Iterator[Candidate]:
    """Candidates of the section's projects in order. ``scratch`` keeps downloads and test runs.

    ``dropped`` counts, by reason, the changes that never became a candidate. Raises ``UserError`` for an
    unknown project and where a source distribution is not there and cannot be fetched. Tests run in a thread
    with an event loop of its own, one candidate ahead at most.
    """
    unknown = sorted(set(section.projects) - PROJECTS.keys())
    if unknown:
        raise UserError(
            f"there is no project {unknown[0]!r} to take fixes from (known: {', '.join(PROJECTS)})"
        )
    if not section.projects:
        return
    counter = Counter() if dropped is None else dropped
    feed = _Feed(_all(section, scratch, seed, backend, counter))
    try:
        yield from feed
    finally:
        feed.stop()


class _Feed:
    """An asynchronous iterator's items, from a thread of its own. ``stop`` ends it wherever it is."""

    def __init__(self, source: AsyncIterator[Candidate]) -> None:
        self._source, self._items = source, queue.Queue()
        self._wanted = threading.Semaphore(2)  # this one, and one ahead
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._fill())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Candidate]:
        while (item := self._items.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            self._wanted.release()
            yield item

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended, its loop is closed
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._wanted.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # for the thread that asked
            self._items.put(error)
        finally:
            self._items.put(_END)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _fill(self) -> None:
        async for candidate in self._source:
            await asyncio.to_thread(self._wanted.acquire)
            self._items.put(candidate)


async def _all(
    section: SweSection, scratch: Path, seed: int, backend: Backend | None, dropped: Counter
) -> AsyncIterator[Candidate]:
    backend = backend or await asyncio.to_thread(open_backend)
    with tempfile.TemporaryDirectory(prefix="apt-") as folder:
        apt = AptSources(Path(folder))
        for name in dict.fromkeys(section.projects):
            runner = Runner(backend, PROJECTS[name], scratch / "runs")
            for source in _sources(PROJECTS[name], section, runner, apt, scratch, seed, dropped):
                try:
                    async for candidate in source:
                        yield candidate
                except Rejected as reason:
                    dropped[str(reason)] += 1
                    log.info("%s: %s", name, reason)


def _sources(
    project: Project, section: SweSection, runner: Runner, apt: AptSources, scratch: Path, seed: int,
    dropped: Counter,
) -> Iterator[AsyncIterator[Candidate]]:  # fmt: skip
    """Debian's patches, then pairs of releases; one that fails does not hold up the others."""

    def note(why: str) -> None:
        dropped[why] += 1

    for package in PACKAGES.get(project.name, ()) if "debian" in section.kinds else ():
        yield of_package(project, package, runner, apt, scratch, note)
    if {"release", "reversal"} & set(section.kinds):
        releases = project.releases[-(section.releases or len(project.releases)) :]
        for old, new in pairwise(releases):
            yield _of_releases(project, old, new, section, runner, scratch, seed, note)


async def _of_releases(project, old, new, section, runner, scratch, seed, note) -> AsyncIterator[Candidate]:
    pair = await asyncio.to_thread(make_pair, project, old, new, scratch)
    async for candidate in of_pair(pair, section, runner, seed, note):
        yield candidate
