"""The sequences of one HTTP request: submitted together, read as they come, closed together."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from model.inference.request import Completion, QueueFull, SamplingParams, Token
from model.inference.server.checkpoints import Checkpoints, Loaded
from model.inference.server.errors import ApiError
from model.inference.server.limits import Gate, Limits
from model.inference.server.metrics import Metrics
from model.inference.server.schemas import SamplingBody


@dataclass
class Job:
    """One sequence to sample."""

    prompt: list[int]
    params: SamplingParams


class Server:
    """What the routes share."""

    def __init__(self, checkpoints: Checkpoints, limits: Limits, metrics: Metrics):
        self.checkpoints, self.limits, self.metrics = checkpoints, limits, metrics
        self.gate = Gate(limits.sequences)

    async def enter(self, body: SamplingBody, sequences: int) -> "Generation":
        """A place for a request and its checkpoint, both kept until ``Generation.close``."""
        self.gate.enter(sequences)
        try:
            loaded = await self.checkpoints.hold(body.model)
        except BaseException:
            self.gate.leave(sequences)
            raise
        return Generation(self, loaded, sequences)

    def room(self, loaded: Loaded, prompt_tokens: int, asked: int | None) -> int:
        """How many tokens may be sampled after a prompt. Raises ``ApiError`` 400 where none fits."""
        most_prompt = min(self.limits.prompt_tokens or loaded.context, loaded.context)
        if prompt_tokens > most_prompt:
            raise too_long(f"{prompt_tokens} tokens", most_prompt)
        room = loaded.context - prompt_tokens
        if asked is not None and asked > room:
            raise ApiError(
                400, f"{prompt_tokens} tokens of prompt and {asked} to sample are more than the model's "
                f"context of {loaded.context}", param="max_tokens", code="context_length_exceeded",
            )  # fmt: skip
        return min(room if asked is None else asked, self.limits.max_tokens or room)

    def check_size(self, loaded: Loaded, text: str) -> None:
        """Refuse text that is too long whatever its tokens are, before time is spent on encoding it."""
        most = min(self.limits.prompt_tokens or loaded.context, loaded.context)
        longest = loaded.longest_token
        if len(text) > most * longest:
            raise too_long(f"{len(text)} characters, so more than {len(text) // longest} tokens", most)


def too_long(length: str, most: int) -> ApiError:
    return ApiError(
        400, f"The prompt has {length}; {most} tokens is the most", param="prompt",
        code="context_length_exceeded",
    )  # fmt: skip


class Generation:
    """A request inside the server: from its admission to its last token, or to its end before that."""

    def __init__(self, server: Server, loaded: Loaded, sequences: int):
        self._server, self.loaded, self._sequences = server, loaded, sequences
        self._streams: list = []
        self._pumps: list[asyncio.Task] = []
        self._items: asyncio.Queue[tuple[int, Token | Completion | BaseException]] = asyncio.Queue()
        self._started = time.perf_counter()
        self._left = 0
        self._closed = False

    def start(self, jobs: Iterable[Job], stream: bool) -> None:
        """Submit the sequences, for ``items`` to ``stream`` or for ``ends``. Raises ``ApiError``: 422 for one
        that is refused, 429 for a full queue.
        """
        try:
            for job in jobs:
                self._streams.append(self.loaded.engine.submit(job.prompt, job.params, whole=not stream))
        except QueueFull as error:
            raise ApiError(429, f"The engine's queue is full: {error}", code="busy") from error
        except ValueError as error:
            raise ApiError(422, str(error)) from error
        except RuntimeError as error:  # closed, or broken
            raise ApiError(503, str(error), code="engine_error") from error
        self._left = len(self._streams)
        self._pumps = [asyncio.create_task(self._pump(n)) for n in range(self._left)] if stream else []

    async def items(self) -> AsyncIterator[tuple[int, Token | Completion]]:
        """Tokens with the number of their sequence, as they come; each sequence ends with its Completion."""
        first = True
        while self._left:
            number, item = await self._items.get()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Completion):
                self._end(item)
            elif first:
                first = False
                self._server.metrics.first_token.observe(time.perf_counter() - self._started)
            yield number, item
        self._server.metrics.answered.observe(time.perf_counter() - self._started)

    async def ends(self) -> list[Completion]:
        """All sequences' answers, in their order, once the last of them is there."""
        for ended in asyncio.as_completed([stream.done() for stream in self._streams]):
            self._end(await ended)
        metrics, times = self._server.metrics, [stream.first_token for stream in self._streams]
        if sampled := [when for when in times if when is not None]:
            metrics.first_token.observe(min(sampled) - self._started)
        metrics.answered.observe(time.perf_counter() - self._started)
        return [stream.completion for stream in self._streams]

    async def close(self) -> None:
        """End what still runs and give everything back. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for pump in self._pumps:
            pump.cancel()
        for stream in self._streams:
            stream.close()
        self._server.metrics.sequences_left(self._left)
        self._server.gate.leave(self._sequences)
        self._server.checkpoints.release()

    def _end(self, completion: Completion) -> None:
        self._left -= 1
        _raise_failure(completion)
        self._server.metrics.sequence_ended(completion)

    async def _pump(self, number: int) -> None:
        stream = self._streams[number]
        try:
            async for token in stream:
                self._items.put_nowait((number, token))
            self._items.put_nowait((number, await stream.done()))
        except Exception as error:
            self._items.put_nowait((number, error))


def _raise_failure(completion: Completion) -> None:
    if completion.finish == "cancelled":
        raise ApiError(503, "The request was ended because the server closes", code="cancelled")
    if completion.finish == "error":
        raise ApiError(500, f"The engine failed at this request: {completion.error}", code="engine_error")


def sampling_params(body: SamplingBody, number: int, **fields) -> SamplingParams:
    """The engine's words for a body's sampling fields. ``number``: which of its n choices."""
    return SamplingParams(
        temperature=body.temperature,
        top_k=max(body.top_k, 0),
        top_p=body.top_p,
        min_p=body.min_p,
        seed=None if body.seed is None else (body.seed + number) % 2**63,
        stop_strings=tuple(body.stop),
        **fields,
    )
