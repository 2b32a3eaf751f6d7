"""The verbs of reinforcement learning on vLLM's server, as on ours (model/inference/server/control.py).

An ASGI middleware (``--middleware``): POST /pause, /resume, /load_weights and GET /health are answered here,
all else goes on to vLLM. Every request first passes the guard of our server.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.hub import load_folder
from model.inference.server.errors import ApiError
from model.inference.server.guard import Guard
from model.inference.server.limits import Limits
from model.inference.server.loading import named_folders
from model.inference.server.request_body import read_body
from model.inference.server.schemas import LoadWeightsBody
from model.inference.vllm.folder import write_view
from model.inference.weights import read_state

SERVED = "GLM5_VLLM_SERVED"  # variable: NAME=FOLDER of what is served
AS_IT_IS = "GLM5_VLLM_AS_IT_IS"  # variable: "1" where folders are loaded without a view
ADDRESS = "GLM5_VLLM_ADDRESS"  # variable: the server's own


class Verbs:
    def __init__(self, app: ASGIApp):
        self._app = app
        [(self._name, folder)] = named_folders([os.environ[SERVED]]).items()
        self._shape = load_folder(folder).to("meta")  # what other weights must fit
        self._version = 0
        self._one_at_a_time = asyncio.Lock()
        self._routes: dict[tuple[str, str], Callable[[Request, Any], Awaitable[JSONResponse]]] = {
            ("POST", "/pause"): self._pause, ("POST", "/resume"): self._resume,
            ("POST", "/load_weights"): self._load_weights, ("GET", "/health"): self._health,
        }  # fmt: skip
        self._guarded = Guard(self._route, None, True, Limits().body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            send = self._announcing(send)
        await self._guarded(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope.get("method", ""), scope.get("path", "")))
        if route is None:
            await self._app(scope, receive, send)
            return
        try:
            answer = await route(Request(scope, receive), scope["app"].state.engine_client)
        except ApiError as error:
            answer = error.response()
        await answer(scope, receive, send)

    async def _pause(self, request: Request, engine: Any) -> JSONResponse:
        """Sampling stops between two tokens; requests are kept and new ones wait."""
        async with self._one_at_a_time:
            await engine.pause_generation(mode="keep", clear_cache=False)
        return JSONResponse({"paused": True, "version": self._version})

    async def _resume(self, request: Request, engine: Any) -> JSONResponse:
        async with self._one_at_a_time:
            await engine.resume_generation()
        return JSONResponse({"paused": False, "version": self._version})

    async def _load_weights(self, request: Request, engine: Any) -> JSONResponse:
        """Weights of another version; requests under way go on with them, their cache computed again."""
        body = await read_body(request, LoadWeightsBody)
        started = time.perf_counter()
        async with self._one_at_a_time:
            try:
                await asyncio.to_thread(read_state, self._shape, body.folder, body.checksum)
            except (OSError, ValueError) as error:
                raise ApiError(422, f"The weights were not loaded: {error}", param="folder") from error
            paused = await engine.is_paused()
            await engine.pause_generation(mode="keep", clear_cache=False)
            try:
                await self._exchange(engine, body.folder)
                await engine.update_weight_version(str(body.version))
                self._version = body.version
            except Exception as error:  # of whatever kind: it comes from another process
                raise ApiError(
                    500, f"vLLM failed at changing its weights ({error}): load them again or start it anew"
                ) from error
            finally:
                if not paused:
                    await engine.resume_generation()
        return JSONResponse({"version": self._version, "seconds": time.perf_counter() - started})

    async def _exchange(self, engine: Any, folder: str) -> None:
        with tempfile.TemporaryDirectory(prefix="glm5-vllm-") as view:
            if os.environ.get(AS_IT_IS) == "1":
                view = folder
            else:
                write_view(folder, view)
            await engine.collective_rpc("load_whole", args=(view,))
        await engine.reset_prefix_cache(reset_running_requests=True)

    async def _health(self, request: Request, engine: Any) -> JSONResponse:
        try:
            await engine.check_health()
        except Exception as error:  # vLLM's own kind, for an engine that has died
            raise ApiError(503, f"vLLM's engine does not answer: {error}") from error
        return JSONResponse({"status": "ok", "model": self._name, "version": self._version})

    def _announcing(self, send: Send) -> Send:
        async def announce(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                address = os.environ[ADDRESS]
                print(f"serving {self._name} with vLLM   API: {address}/v1   (Ctrl-C ends)", flush=True)

        return announce
