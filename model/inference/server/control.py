"""The verbs of reinforcement learning, a sign of life, and the figures for Prometheus."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from model.inference.buckets import MANIFEST, read_buckets
from model.inference.server.errors import ApiError
from model.inference.server.generation import Server
from model.inference.server.loading import checkpoint_folder
from model.inference.server.request_body import read_body
from model.inference.server.schemas import LoadWeightsBody


async def pause(request: Request) -> JSONResponse:
    """Sampling stops between two tokens; requests are kept and new ones wait."""
    engine = _server(request).checkpoints.loaded.engine
    await engine.pause()
    return JSONResponse({"paused": True, "version": engine.version})


async def resume(request: Request) -> JSONResponse:
    engine = _server(request).checkpoints.loaded.engine
    engine.resume()
    return JSONResponse({"paused": False, "version": engine.version})


async def load_weights(request: Request) -> JSONResponse:
    """Weights of another version into the loaded model; requests under way go on with them."""
    started = time.monotonic()
    body = await read_body(request, LoadWeightsBody)
    deadline = None if body.seconds is None else started + body.seconds
    checkpoints = _server(request).checkpoints
    engine = (await checkpoints.hold(None)).engine
    try:
        source, checksum = await _source(body, engine.version, deadline)
        await engine.load_weights(source, body.version, checksum, deadline)
    except (OSError, ValueError) as error:
        raise ApiError(422, f"The weights were not loaded: {error}", param="folder") from error
    finally:
        checkpoints.release()
    return JSONResponse({"version": engine.version, "seconds": time.monotonic() - started})


async def _source(
    body: LoadWeightsBody, present: int, deadline: float | None
) -> tuple[Path | Mapping[str, torch.Tensor], str | None]:
    """Weights for ``Engine.load_weights``, and the checksum that is still to be compared."""
    folder = Path(body.folder)
    if not (folder / MANIFEST).exists():
        return checkpoint_folder(body.folder), body.checksum
    if body.version < present:
        raise ValueError(f"version {body.version} comes too late: the engine has version {present}")
    return await asyncio.to_thread(read_buckets, folder, body.version, body.checksum, deadline), None


async def health(request: Request) -> JSONResponse:
    """200 while requests can be answered, 503 once the engine has stopped."""
    loaded = _server(request).checkpoints.loaded
    if loaded.engine.broken:
        raise ApiError(503, f"{loaded.engine.broken}; start the server again", code="engine_stopped")
    return JSONResponse({"status": "ok", "model": loaded.name, "version": loaded.engine.version})


async def metrics(request: Request) -> Response:
    return Response(_server(request).metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _server(request: Request) -> Server:
    return request.app.state.server
