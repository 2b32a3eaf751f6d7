"""The verbs of reinforcement learning, a sign of life, and the figures for Prometheus."""

import time

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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
    body = await read_body(request, LoadWeightsBody)
    checkpoints = _server(request).checkpoints
    engine = (await checkpoints.hold(None)).engine
    started = time.perf_counter()
    try:
        folder = checkpoint_folder(body.folder)
        await engine.load_weights(folder, version=body.version, checksum=body.checksum)
    except (OSError, ValueError) as error:
        raise ApiError(422, f"The weights were not loaded: {error}", param="folder") from error
    finally:
        checkpoints.release()
    return JSONResponse({"version": engine.version, "seconds": time.perf_counter() - started})


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
