"""All candidates of a recipe, project by project: lazily, so that whoever has enough can stop."""

import asyncio
import contextlib
import logging
import queue
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.swe.build import make_pair, of_pair
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
    for name in dict.fromkeys(section.projects):
        project = PROJECTS[name]
        releases = project.releases[-(section.releases or len(project.releases)) :]
        runner = Runner(backend, project, scratch / "runs")
        for old, new in pairwise(releases):
            pair = await asyncio.to_thread(make_pair, project, old, new, scratch)
            try:
                async for candidate in of_pair(
                    pair, section, runner, seed, lambda why: dropped.update([why])
                ):
                    yield candidate
            except Rejected as reason:
                dropped[str(reason)] += 1
                log.info("%s %s: %s", name, new.version, reason)
