"""Slow and vanished clients: what they started is cancelled, what they hold is given back."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from model.inference.server.errors import ApiError
from model.inference.server.limits import Limits

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The result of ``work``, which is cancelled, with ``ClientGone``, when the client leaves.

    To be called when the request's body has been read.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class Answer(Protocol):
    """The answer to one request, to be taken in one of two ways and closed."""

    def events(self) -> AsyncIterator[dict]: ...

    async def whole(self) -> dict: ...

    async def close(self) -> None: ...


async def respond(request: Request, begin: Coroutine[None, None, Answer], stream: bool) -> Response:
    """The answer that ``begin`` starts, as a stream of events or whole, while the client is there."""
    answer = await unless_gone(request.receive, begin)
    if stream:
        return EventStream(answer.events(), answer.close)
    try:
        return JSONResponse(await unless_gone(request.receive, answer.whole()))
    finally:
        await answer.close()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """A response of server-sent events. ``close`` is awaited at its end, however that comes."""

    def __init__(self, events: AsyncIterator[dict], close: Callable[[], Awaitable[None]]):
        self._events, self._close = events, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            pass
        finally:
            await self._close()

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for event in self._events:
                await _send_event(send, json.dumps(event, ensure_ascii=False))
        except ApiError as error:  # too late for a status code
            await _send_event(send, json.dumps(error.body(), ensure_ascii=False))
        await _send_event(send, "[DONE]")
        await send({"type": "http.response.body", "body": b""})


async def _send_event(send: Send, text: str) -> None:
    body = f"data: {text}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


def guarded_protocol(limits: Limits) -> type[H11Protocol]:
    """uvicorn's HTTP connection, which ends clients that do not send their request or do not read.

    uvicorn itself waits for both without limit. The transport is aborted: closing it would wait until the
    client has read what is buffered.
    """

    class GuardedProtocol(H11Protocol):
        _arrival: asyncio.TimerHandle | None = None
        _stall: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._await_request()

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not None and not self.cycle.more_body:
                _cancel(self._arrival)

        def on_response_complete(self) -> None:
            _cancel(self._arrival)
            super().on_response_complete()

        def data_received(self, data: bytes) -> None:
            idle = self.timeout_keep_alive_task is not None
            super().data_received(data)
            if idle and (self.cycle.response_complete or self.cycle.more_body):
                self._await_request()  # the first part of a further request

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stall = self.loop.call_later(limits.stall_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._stall)

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._arrival)
            _cancel(self._stall)
            super().connection_lost(exc)

        def _await_request(self) -> None:
            _cancel(self._arrival)
            self._arrival = self.loop.call_later(limits.receive_seconds, self.transport.abort)

    return GuardedProtocol


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
