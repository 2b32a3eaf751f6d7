"""The application: routes, what surrounds them, and the life of the engine behind them.

Read next: ``chat.py`` (a request from body to answer), ``generation.py``, ``checkpoints.py``.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.inference.server import chat, completions, control, vocabulary
from model.inference.server.checkpoints import Checkpoints, Opener
from model.inference.server.connections import ClientGone
from model.inference.server.errors import ApiError, handle
from model.inference.server.generation import Server
from model.inference.server.guard import Guard
from model.inference.server.limits import Limits
from model.inference.server.metrics import Metrics

PAGE = Path(__file__).parents[1] / "chat_page"
CLIENT_CLOSED = 499  # nobody reads it; the log does

ROUTES = [
    Route("/v1/models", vocabulary.list_models),
    Route("/v1/models/{name:path}", vocabulary.retrieve_model),
    Route("/v1/completions", completions.completions, methods=["POST"]),
    Route("/v1/chat/completions", chat.chat_completions, methods=["POST"]),
    Route("/tokenize", vocabulary.tokenize, methods=["POST"]),
    Route("/detokenize", vocabulary.detokenize, methods=["POST"]),
    Route("/pause", control.pause, methods=["POST"]),
    Route("/resume", control.resume, methods=["POST"]),
    Route("/load_weights", control.load_weights, methods=["POST"]),
    Route("/health", control.health),
    Route("/metrics", control.metrics),
]


def make_app(
    folders: dict[str, Path],
    first: str,
    opener: Opener,
    *,
    limits: Limits,
    api_key: str | None = None,
    loopback: bool = True,
) -> Starlette:
    """The server of these checkpoints (folders by name), with ``first`` loaded at its start."""

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        checkpoints = Checkpoints(folders, opener, limits.switch_seconds)
        app.state.server = server = Server(checkpoints, limits, Metrics(lambda: gauges(server)))
        await checkpoints.open(first)
        try:
            yield
        finally:
            await checkpoints.close()

    async def page(request: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    return Starlette(
        routes=[*ROUTES, Route("/", page), Mount("/page", StaticFiles(directory=PAGE))],
        middleware=[
            Middleware(CountRequests),
            Middleware(Guard, api_key=api_key, loopback=loopback, body_bytes=limits.body_bytes),
        ],
        exception_handlers={
            ApiError: handle,
            HTTPException: handle,
            ClientGone: client_gone,
            Exception: handle,
        },
        lifespan=life,
    )


async def client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


def gauges(server: Server) -> dict[str, float]:
    """The figures of this moment: the server's, and all numbers among the engine's."""
    engine = server.checkpoints.loaded.engine
    numbers = {f"engine_{k}": float(v) for k, v in engine.stats().items() if isinstance(v, int | float)}
    return {"sequences_inside": server.gate.inside, "weights_version": engine.version, **numbers}


class CountRequests:
    """Counts answers by route and status; unknown paths together, so that their number stays small."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_CLOSED

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            status = 500
            raise
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            scope["app"].state.server.metrics.requests.labels(path, str(status)).inc()
