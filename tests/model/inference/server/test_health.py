"""The sign of life of a server whose engine has stopped."""

import asyncio

import httpx
import pytest

from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from model.inference.async_engine import AsyncEngine
from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.inference.server.app import make_app
from model.inference.server.checkpoints import Loaded
from model.inference.server.limits import Limits
from tests.waiting import PATIENCE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it is what is tested
def test_health_is_unavailable_once_the_engine_has_stopped(folders, monkeypatch):
    engine = Engine(load_folder(folders["speaker"]))

    async def opener(name, folder) -> Loaded:
        return Loaded(name, AsyncEngine(engine), Tokenizer.load(folder), 64)

    async def main() -> None:
        app = make_app({"speaker": folders["speaker"]}, "speaker", opener, limits=Limits())
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                assert (await client.get("/health")).json()["status"] == "ok"
                monkeypatch.setattr(engine, "step", lambda: 1 / 0)
                monkeypatch.setattr(engine, "fail", lambda reason: 1 / 0)  # so that nobody can be told
                stream = app.state.server.checkpoints.loaded.engine.submit([1], SamplingParams(2))
                assert (await stream.done()).finish == "error"
                health = await client.get("/health")
                assert health.status_code == 503
                assert health.json()["error"]["code"] == "engine_stopped"
                assert "ZeroDivisionError" in health.json()["error"]["message"]
                answer = await client.post("/v1/completions", json={"prompt": "a"})
                assert answer.status_code == 503

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
