"""The engine for an event loop: one background thread runs the passes, streams carry the tokens to their
readers.

    engine = AsyncEngine(Engine(model, tokenizer=tokenizer))
    stream = engine.submit(prompt_ids, SamplingParams(...))     # QueueFull and ValueError come from here
    async for token in stream:
        ...
    completion = await stream.done()

A reader that goes away (``stream.close()``, or a cancelled ``async for``) cancels its request. A reader that
is slow keeps nobody waiting: its tokens pile up in its stream, ``max_new_tokens`` of them at most. Who wants
the answer alone says ``whole``: the loop then hears of a request once, not at every token.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from model.inference.buckets import in_time
from model.inference.engine import Engine
from model.inference.request import Completion, Event, SamplingParams, Token


class Stream:
    """The tokens of one request, for one reader in the event loop that submitted it."""

    def __init__(self, cancel: Callable[[], None], loop: asyncio.AbstractEventLoop, whole: bool):
        self._cancel, self._loop, self.whole = cancel, loop, whole
        self._items: asyncio.Queue[Token | None] = asyncio.Queue()
        self._ended = loop.create_future()
        self.completion: Completion | None = None
        self.first_token: float | None = None  # when it was sampled (``time.perf_counter``)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Token:
        try:
            token = await self._items.get()
        except asyncio.CancelledError:
            self.close()
            raise
        if token is None:
            self._items.put_nowait(None)  # the end stays the end
            raise StopAsyncIteration
        return token

    async def done(self) -> Completion:
        """The whole answer, once it is there; ``finish`` says how it ended, also for a failure."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Cancel the request unless it has ended."""
        if self.completion is None:
            self._cancel()

    def deliver(self, event: Event) -> None:
        """For the engine, in the stream's loop."""
        if not self.whole:
            for token in event.tokens:
                self._items.put_nowait(token)
        if event.completion is not None:
            self.completion = event.completion
            self._items.put_nowait(None)
            if not self._ended.done():
                self._ended.set_result(event.completion)


class AsyncEngine:
    def __init__(self, engine: Engine):
        self._engine = engine
        self._streams: dict[int, Stream] = {}
        self._jobs: list[Callable[[], None]] = []  # what the thread does between two passes
        self._changed = threading.Condition()  # guards everything here but the engine's passes
        self._paused = self._closing = False
        self._broken = ""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def records_experts(self) -> bool:
        return self._engine.records_experts

    @property
    def broken(self) -> str:
        """Why the thread has ended, where it did not end by ``close``: nothing is answered any more."""
        return self._broken

    def stats(self) -> dict[str, float]:
        return self._engine.stats() | {"paused": float(self._paused)}

    def submit(self, prompt_ids: Sequence[int], params: SamplingParams, *, whole: bool = False) -> Stream:
        """Queue a request; call it in the event loop that reads the stream, or, of ``whole``, waits for its
        end: that stream has no tokens.

        Raises what ``Engine.add`` raises, and ``RuntimeError`` for an engine that is closed.
        """
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._closing or self._broken:
                raise RuntimeError(self._broken or "the engine is closed")
            number = self._engine.add(prompt_ids, params)
            stream = self._streams[number] = Stream(lambda: self._drop(number), loop, whole)
            self._changed.notify()
        return stream

    async def pause(self) -> None:
        """Stop between two passes; requests are kept and new ones wait. Back when the last pass has ended."""
        self._paused = True
        await self._between_passes(lambda: None)

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            self._changed.notify()

    async def load_weights(
        self,
        source: str | Path | Mapping[str, torch.Tensor],
        version: int,
        checksum: str | None = None,
        deadline: float | None = None,
    ) -> None:
        """``Engine.load_weights`` between two passes, paused or not. ``ValueError`` once the ``deadline``
        (``time.monotonic``) has passed.
        """

        def load() -> None:
            in_time(deadline, "a pass was still under way")
            self._engine.load_weights(source, version, checksum)

        await self._between_passes(load)

    async def close(self) -> None:
        """Take no more requests, finish those that are there, and end the thread. While paused, nothing can
        finish: requests are cancelled then.
        """
        with self._changed:
            self._closing = True
            if self._paused:
                for number in self._streams:
                    self._engine.cancel(number)
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _drop(self, number: int) -> None:
        with self._changed:
            self._engine.cancel(number)
            self._changed.notify()

    async def _between_passes(self, job: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def run() -> None:
            try:
                job()
            except Exception as error:
                _call(loop, _settle, done, error)
            else:
                _call(loop, _settle, done, None)

        with self._changed:
            if not self._thread.is_alive():
                raise RuntimeError(self._broken or "the engine is closed")
            self._jobs.append(run)
            self._changed.notify()
        await done

    def _run(self) -> None:
        try:
            while self._wait():
                self._pass()
        except BaseException as error:
            self._broken = f"the engine has stopped: {type(error).__name__}: {error}"
            with self._changed:
                lost, jobs, self._jobs = list(self._streams), self._jobs, []
            completion = Completion(finish="error", error=self._broken)
            self._deliver([Event(number, completion=completion) for number in lost])
            for job in jobs:
                job()
            raise

    def _wait(self) -> bool:
        """Sleep until there is something to do; False once the engine is closed and has nothing left."""
        with self._changed:
            while True:
                if self._jobs or (self._engine.has_work and not self._paused) or self._engine.has_cancelled:
                    return True
                if self._closing and not self._engine.has_work:
                    return False
                self._changed.wait()

    def _pass(self) -> None:
        with self._changed:
            jobs, self._jobs = self._jobs, []
        for job in jobs:
            job()
        if self._paused:
            events = self._engine.sweep()
        else:
            try:
                events = self._engine.step()
            except Exception as error:  # outside of the pass itself, where the engine cannot tell whose it is
                with self._changed:
                    events = self._engine.fail(f"{type(error).__name__}: {error}")
        self._deliver(events)

    def _deliver(self, events: list[Event]) -> None:
        """Hand events to their streams, with one call for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Event]]] = {}
        with self._changed:
            for event in events:
                stream = self._streams.get(event.request)
                if stream is None:
                    continue
                if stream.first_token is None and event.tokens:
                    stream.first_token = time.perf_counter()
                if event.completion is not None or not stream.whole:
                    by_loop.setdefault(stream._loop, []).append((stream, event))
                if event.completion is not None:
                    del self._streams[event.request]
        for loop, pairs in by_loop.items():
            if not _call(loop, _deliver_all, pairs):
                for _, event in pairs:  # nobody reads any more
                    self._engine.cancel(event.request)


def _deliver_all(pairs: list[tuple[Stream, Event]]) -> None:
    for stream, event in pairs:
        stream.deliver(event)


def _settle(done: asyncio.Future, error: Exception | None) -> None:
    if done.done():  # whoever asked has gone
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _call(loop: asyncio.AbstractEventLoop, function: Callable, *arguments) -> bool:
    """Run a function in a loop; False where the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
