"""Environments over HTTP in the manner of OpenEnv: an application for any ASGI server.

    python -m environments.adapters.openenv arithmetic tools --port 8100

``POST /reset {seed?, episode_id?, environment?, family?, heldout?}`` begins an episode,
``POST /step {episode_id, action}`` takes an assistant message; both answer
``{episode_id, observation: {messages, tools}, reward, done, info}``. ``reward`` is null until the episode is
done, and after it where the environment failed. ``GET /state /schema /metadata /health`` tell the rest; the
web socket ``/ws`` takes ``{"type": "reset" | "step" | "state" | "close", "data": {...}}`` and holds one
episode. An episode that nobody has stepped for ``idle_seconds`` is closed when the next one begins.
"""

import argparse
import asyncio
import contextlib
import time
import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, HTTPException, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from environments.catalog import environments, select
from environments.interface import Environment, Episode, Task
from environments.sandbox.choose import open_backend
from pipeline.errors import UserError, run_command

IDLE_SECONDS = 600.0
MAX_EPISODES = 1000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Reset(BaseModel):
    model_config = ConfigDict(extra="forbid")
    seed: int = 0
    episode_id: str | None = None
    environment: str | None = None  # the first that is served
    family: str | None = None  # its first
    heldout: bool = False


class Take(BaseModel):
    model_config = ConfigDict(extra="forbid")
    episode_id: str
    action: dict[str, Any]  # an assistant message


@dataclass
class _Open:
    task: Task
    episode: Episode
    touched: float
    steps: int = 0
    done: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Episodes:
    """Running episodes by id. Raises ``HTTPException`` with a sentence for what cannot be done."""

    def __init__(self, served: dict[str, Environment], idle_seconds: float = IDLE_SECONDS):
        self.served, self.idle_seconds = served, idle_seconds
        self._open: dict[str, _Open] = {}

    async def reset(self, request: Reset) -> dict[str, Any]:
        await self._sweep()
        environment = self.served.get(request.environment or next(iter(self.served)))
        if environment is None:
            raise HTTPException(
                404, f"no environment {request.environment!r} (known: {', '.join(self.served)})"
            )
        name = request.episode_id or uuid.uuid4().hex
        await self.close(name)
        if len(self._open) >= MAX_EPISODES:
            raise HTTPException(503, f"{MAX_EPISODES} episodes are running: close some, or wait")
        try:
            family = request.family or (environment.families + environment.evaluation_only)[0]
            task = environment.make_task(family, request.seed, request.heldout)
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        found = _Open(task, environment.episode(), time.monotonic())
        self._open[name] = found
        messages = await found.episode.reset(task)
        return _answer(name, messages, None, False, {"task": task.id}, list(task.tools))

    async def step(self, request: Take) -> dict[str, Any]:
        found = self._find(request.episode_id)
        async with found.lock:
            if found.done:
                raise HTTPException(409, "the episode is over: reset it before another step")
            if request.action.get("role") != "assistant":
                raise HTTPException(
                    422, "action is an assistant message: {role: assistant, content, tool_calls}"
                )
            found.touched, found.steps = time.monotonic(), found.steps + 1
            step = await found.episode.step(request.action)
            if not step.done:
                return _answer(request.episode_id, step.messages, None, False, {})
            found.done = True
            verdict = await found.episode.verify()
        return _answer(request.episode_id, step.messages, verdict.reward, True, {"reason": verdict.reason})

    def state(self, episode_id: str) -> dict[str, Any]:
        found = self._find(episode_id)
        task = found.task.id
        return {"episode_id": episode_id, "step_count": found.steps, "done": found.done, "task": task}

    async def close(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            await found.episode.close()

    async def close_all(self) -> None:
        for name in list(self._open):
            await self.close(name)

    def _find(self, name: str) -> _Open:
        if name not in self._open:
            raise HTTPException(404, f"no episode {name!r}: reset gives one, and an idle one is closed")
        return self._open[name]

    async def _sweep(self) -> None:
        oldest = time.monotonic() - self.idle_seconds
        for name in [name for name, found in self._open.items() if found.touched < oldest]:
            await self.close(name)


def _answer(name: str, messages, reward, done: bool, info: dict, tools: list | None = None) -> dict[str, Any]:
    observation = {"messages": messages, **({"tools": tools} if tools is not None else {})}
    return {"episode_id": name, "observation": observation, "reward": reward, "done": done, "info": info}


class Guard:
    """Refuses what comes from a page of another host in the visitor's browser: its name in Host or Origin
    gives it away. Only this machine is served.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            names = [f"//{headers.get('host', '')}", *headers.getlist("origin")]
            if any(urlsplit(name).hostname not in LOOPBACK for name in names):
                if scope["type"] == "http":
                    refusal = PlainTextResponse("this server is for this machine alone", 403)
                    await refusal(scope, receive, send)
                else:
                    await send({"type": "websocket.close", "code": 1008})
                return
        await self._app(scope, receive, send)


def make_app(served: dict[str, Environment], idle_seconds: float = IDLE_SECONDS) -> FastAPI:
    """The application. What runs is closed when it stops."""
    episodes = Episodes(served, idle_seconds)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI):
        yield
        await episodes.close_all()

    app = FastAPI(title="glm5-pipeline environments", lifespan=lifespan)
    app.add_middleware(Guard)
    app.post("/reset")(episodes.reset)
    app.post("/step")(episodes.step)
    app.get("/state")(episodes.state)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/metadata")
    def metadata() -> dict[str, Any]:
        return {name: {"families": environment.families, "evaluation_only": environment.evaluation_only}
                for name, environment in served.items()}  # fmt: skip

    @app.get("/schema")
    def schema() -> dict[str, Any]:
        return {"reset": Reset.model_json_schema(), "action": Take.model_json_schema()}

    @app.websocket("/ws")
    async def session(socket: WebSocket) -> None:
        await _session(socket, episodes)

    return app


async def _session(socket: WebSocket, episodes: Episodes) -> None:
    """One episode over a web socket. A fault is told and the session goes on; the episode ends with it."""
    await socket.accept()
    name = uuid.uuid4().hex
    try:
        while True:
            try:
                message = await socket.receive_json()
                kind, data = message["type"], message.get("data") or {}
                if kind == "reset":
                    answer = await episodes.reset(Reset(**{**data, "episode_id": name}))
                elif kind == "step":
                    answer = await episodes.step(Take(**{**data, "episode_id": name}))
                elif kind == "state":
                    answer = episodes.state(name)
                elif kind == "close":
                    break
                else:
                    raise HTTPException(
                        422, f"no message of type {kind!r} (known: reset, step, state, close)"
                    )
                await socket.send_json({"type": kind, "data": answer})
            except HTTPException as error:
                await _refuse(socket, error.detail)
            except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
                await _refuse(socket, f"the message is not as /schema says: {error!r}")
        await socket.close()
    except WebSocketDisconnect:
        pass
    finally:
        await episodes.close(name)


async def _refuse(socket: WebSocket, sentence: str) -> None:
    await socket.send_json({"type": "error", "data": {"message": sentence}})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="environments.adapters.openenv", description=__doc__)
    parser.add_argument("environments", nargs="*", help="names of the catalog (default: all)")
    parser.add_argument("--port", type=int, default=8100, help="on this machine alone (default: 8100)")
    options = parser.parse_args(arguments)
    if not 1 <= options.port <= 65535:
        parser.error(f"--port {options.port} is not from 1 to 65535")
    catalog = environments(backend=open_backend())
    served = select(catalog, options.environments or catalog)
    print(f"serving {', '.join(served)} at http://127.0.0.1:{options.port}", flush=True)
    uvicorn.run(make_app(served), host="127.0.0.1", port=options.port, log_level="warning")
    return 0


if __name__ == "__main__":
    run_command(main)
