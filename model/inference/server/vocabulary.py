"""POST /tokenize and /detokenize, and GET /v1/models."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from model.inference.server.chat import render_ids
from model.inference.server.errors import ApiError
from model.inference.server.generation import Server
from model.inference.server.request_body import read_body
from model.inference.server.schemas import DetokenizeBody, TokenizeBody


async def tokenize(request: Request) -> JSONResponse:
    server: Server = request.app.state.server
    body = await read_body(request, TokenizeBody)
    loaded = await server.checkpoints.hold(body.model)
    try:
        if body.messages is None:
            ids = await asyncio.to_thread(loaded.tokenizer.encode, body.prompt)
        else:
            ids = await render_ids(
                server, loaded, body.messages, body.tools, body.chat_template_kwargs,
                body.add_generation_prompt,
            )  # fmt: skip
    finally:
        server.checkpoints.release()
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": loaded.context})


async def detokenize(request: Request) -> JSONResponse:
    server: Server = request.app.state.server
    body = await read_body(request, DetokenizeBody)
    loaded = await server.checkpoints.hold(body.model)
    try:
        for token_id in body.tokens:
            if not 0 <= token_id < loaded.tokenizer.vocab_size:
                raise ApiError(
                    422, f"token id {token_id} is not in the vocabulary of {loaded.tokenizer.vocab_size}",
                    param="tokens",
                )  # fmt: skip
        return JSONResponse({"prompt": loaded.tokenizer.decode(body.tokens)})
    finally:
        server.checkpoints.release()


async def list_models(request: Request) -> JSONResponse:
    names = request.app.state.server.checkpoints.folders
    return JSONResponse({"object": "list", "data": [_model(request, name) for name in names]})


async def retrieve_model(request: Request) -> JSONResponse:
    name = request.path_params["name"]
    request.app.state.server.checkpoints.check(name)
    return JSONResponse(_model(request, name))


def _model(request: Request, name: str) -> dict[str, Any]:
    checkpoints = request.app.state.server.checkpoints
    model = {"id": name, "object": "model", "created": checkpoints.started, "owned_by": "glm5-pipeline"}
    loaded = checkpoints.loaded
    if loaded.name == name:
        return {**model, "loaded": True, "max_model_len": loaded.context, "version": loaded.engine.version}
    return {**model, "loaded": False}
