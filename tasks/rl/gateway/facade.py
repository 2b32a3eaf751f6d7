"""The gateway for agents that are programs of their own: an OpenAI-compatible server.

    async with Facade(gateway) as facade:
        address = facade.open("rollout-7", seed=7, thinking=MODES["interleaved"], turns=8)
        ...                            # an agent runs with OPENAI_BASE_URL=address and any API key
        guest, session = facade.close("rollout-7")

Each session has an address of its own, ``http://127.0.0.1:PORT/sessions/KEY/v1``: a base URL is what every
agent can be given without a change of its code. The key cannot be guessed, so no agent speaks in another's
session.

It is part of the rollout worker, where sessions and engines are known: nothing is handed over when an agent
ends, and if it is killed it is the worker that is killed, whose unfinished groups are rolled out anew.

An agent's program runs on the host, beside the worker and with its user's rights; nothing here confines it.
Commands that the policy gives run where the program runs them: it must bring a sandbox of its own.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from model.chat.tokens import Thinking
from model.inference.server.app import client_gone
from model.inference.server.connections import ClientGone, guarded_protocol, respond
from model.inference.server.errors import ApiError, handle
from model.inference.server.guard import Guard
from model.inference.server.limits import Limits
from model.inference.server.request_body import read_body
from tasks.rl.engines.client import ContextFull
from tasks.rl.gateway.chat_answer import MODEL, AgentBody, ChatAnswer
from tasks.rl.gateway.gateway import Gateway, Reply, UnknownSession
from tasks.rl.gateway.session import Message, Session
from tasks.rl.router import NoEngine

SECONDS_WITHOUT_ENGINE = 120.0  # until an agent is told; the trainer starts engines again meanwhile
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_CLOSE = 1
SECONDS_KEPT = 60  # of an idle connection: an agent's commands take their time
LIMITS = Limits()


@dataclass
class Guest:
    """An agent's session, beside its tokens. After a ``fault`` of the policy it gets no more answers."""

    name: str
    thinking: Thinking
    turns: int
    answered: int = 0
    asking: int = 0  # requests under way, of which each may become an answer
    fault: str = ""
    messages: list[Message] = field(default_factory=list)  # for people: the last dialogue with its answer


class Facade:
    def __init__(self, gateway: Gateway, limits: Limits = LIMITS):
        self._gateway, self._limits = gateway, limits
        self._guests: dict[str, Guest] = {}  # by key
        self._keys: dict[str, str] = {}  # by session

    async def __aenter__(self) -> Self:
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        limits = self._limits
        config = uvicorn.Config(
            self._app(), http=guarded_protocol(limits), ws="none", lifespan="off", log_config=None,
            limit_concurrency=limits.connections, timeout_graceful_shutdown=SECONDS_TO_CLOSE,
            timeout_keep_alive=SECONDS_KEPT,
        )  # fmt: skip
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listening]))
        return self

    async def __aexit__(self, *error) -> None:
        self._server.should_exit = True
        await self._serving

    def open(self, name: str, seed: int, thinking: Thinking, turns: int) -> str:
        """Begin a session of at most ``turns`` answers; returns its address. ``thinking`` holds where a
        request says nothing else. Raises as ``Gateway.open``.
        """
        self._gateway.open(name, seed)
        key = self._keys[name] = secrets.token_urlsafe(16)
        self._guests[key] = Guest(name, thinking, turns)
        return f"{self.url}/sessions/{key}/v1"

    def close(self, name: str) -> tuple[Guest, Session]:
        """End a session and take what it recorded. Raises ``UnknownSession``."""
        session = self._gateway.close(name)
        return self._guests.pop(self._keys.pop(name)), session

    def _app(self) -> Starlette:
        prefix = "/sessions/{key}/v1"
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route(f"{prefix}/models", self._models),
                Route(f"{prefix}/chat/completions", self._chat, methods=["POST"]),
            ],
            middleware=[
                Middleware(Guard, api_key=None, loopback=True, body_bytes=self._limits.body_bytes),
            ],
            exception_handlers={
                ApiError: handle, HTTPException: handle, ClientGone: client_gone, Exception: handle,
            },
        )  # fmt: skip

    async def _health(self, request: Request) -> JSONResponse:
        engines = self._gateway.router.engines
        return JSONResponse({"status": "ok", "sessions": len(self._guests), "engines": len(engines)})

    async def _models(self, request: Request) -> JSONResponse:
        self._guest(request)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "glm5-pipeline"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        guest = self._guest(request)
        body = await read_body(request, AgentBody)
        return await respond(request, self._answer(guest, body), body.stream)

    def _guest(self, request: Request) -> Guest:
        guest = self._guests.get(request.path_params["key"])
        if guest is None:
            raise ApiError(
                404, "There is no such session: it has ended, or the base URL is not the one it was given",
                code="session_not_found",
            )  # fmt: skip
        return guest

    async def _answer(self, guest: Guest, body: AgentBody) -> ChatAnswer:
        if guest.fault:
            raise ApiError(
                422, f"The session has ended, its last answer is not in the chat format: {guest.fault}",
                code="session_ended",
            )  # fmt: skip
        if guest.answered + guest.asking >= guest.turns:
            raise ApiError(422, f"The session has had its {guest.turns} answers", code="session_ended")
        guest.asking += 1
        try:
            reply = await self._ask(guest, body)
        finally:
            guest.asking -= 1
        guest.answered += 1
        guest.messages = [*body.rows, reply.message]
        if not reply.valid and reply.finish != "length":
            guest.fault = reply.reason
        return ChatAnswer(reply, guest.answered, body.stream_options.include_usage)

    async def _ask(self, guest: Guest, body: AgentBody) -> Reply:
        """The gateway's reply. While no engine is there the agent waits, as for a slow answer."""
        asked = guest.name, body.rows, body.offered_tools, body.thinking(guest.thinking)
        clock = asyncio.get_running_loop()
        deadline = clock.time() + SECONDS_WITHOUT_ENGINE
        while True:
            if self._guests.get(self._keys.get(guest.name, "")) is not guest:
                raise ApiError(404, "The session has ended", code="session_not_found")
            try:
                return await self._gateway.chat(*asked, most=body.most)
            except UnknownSession as error:
                raise ApiError(404, "The session has ended", code="session_not_found") from error
            except ContextFull as error:
                raise ApiError(
                    400, f"The messages fill the model's context: {error}", param="messages",
                    code="context_length_exceeded",
                ) from error  # fmt: skip
            except ValueError as error:
                raise ApiError(422, str(error), param="messages") from error
            except NoEngine as error:
                if clock.time() > deadline:
                    raise ApiError(503, f"No answer now: {error}", code="no_engine") from error
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the worker's."""
        yield
