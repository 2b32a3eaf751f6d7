"""The verbs of vLLM's server as a middleware, with an engine that notes what is asked of it.

No vLLM is needed; test_vllm_server.py has the real one.
"""

import asyncio
import json
import sys
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from model.hub import save_folder
from model.inference.vllm.verbs import SERVED, Verbs
from model.inference.weights import checksum

sys.path.append(str(Path(__file__).parents[1]))

from shapes import small_config


class NotingEngine:
    """What vLLM's engine client is to the verbs."""

    def __init__(self):
        self.asked: list = []
        self.paused = self.broken = False

    async def is_paused(self) -> bool:
        return self.paused

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.paused = True
        self.asked.append(("pause", mode))

    async def resume_generation(self) -> None:
        self.paused = False
        self.asked.append("resume")

    async def collective_rpc(self, method: str, args: tuple) -> None:
        if self.broken:
            raise RuntimeError("a worker died")
        view = json.loads((Path(args[0]) / "config.json").read_text())
        self.asked.append((method, view["architectures"]))

    async def reset_prefix_cache(self, *, reset_running_requests: bool) -> None:
        self.asked.append(("reset", reset_running_requests))

    async def update_weight_version(self, version: str) -> None:
        self.asked.append(("version", version))

    async def check_health(self) -> None:
        if self.broken:
            raise RuntimeError("a worker died")


@pytest.fixture
def folders(tmp_path, make_model):
    folders = {}
    for name, seed in (("first", 0), ("second", 1)):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        save_folder(make_model(small_config(3), seed, indexer=True), folders[name])
    return folders


@pytest.fixture
def ask(folders, monkeypatch):
    """``ask(engine, method, path, body)``: the answer of a server with the verbs, and vLLM behind them."""
    monkeypatch.setenv(SERVED, f"glm5={folders['first']}")
    app = Starlette(
        routes=[Route("/v1/models", lambda request: PlainTextResponse("vLLM's own"))],
        middleware=[Middleware(Verbs)],
    )

    def ask(
        engine: NotingEngine, method: str, path: str, body: dict | None = None, **headers
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            app.state.engine_client = engine
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(send())

    return ask


CHANGE = [
    ("pause", "keep"), ("load_whole", ["DeepseekV3ForCausalLM"]), ("reset", True), ("version", "4"), "resume",
]  # fmt: skip


def test_weights_change_between_two_passes_and_caches_are_computed_again(ask, folders, make_model):
    engine = NotingEngine()
    right = checksum(make_model(small_config(3), 1, indexer=True).state_dict())
    body = {"folder": str(folders["second"]), "version": 4, "checksum": right}
    assert ask(engine, "POST", "/load_weights", body).json()["version"] == 4
    assert engine.asked == CHANGE
    assert ask(engine, "GET", "/health").json() == {"status": "ok", "model": "glm5", "version": 4}


def test_a_paused_engine_stays_paused(ask, folders):
    engine = NotingEngine()
    assert ask(engine, "POST", "/pause").json() == {"paused": True, "version": 0}
    ask(engine, "POST", "/load_weights", {"folder": str(folders["second"]), "version": 4})
    assert engine.asked[1:] == CHANGE[:-1]
    assert ask(engine, "POST", "/resume").json() == {"paused": False, "version": 4}


def test_weights_that_do_not_fit_leave_the_engine_alone(ask, folders, tmp_path, make_model):
    engine = NotingEngine()
    other = tmp_path / "other"
    other.mkdir()
    save_folder(make_model(small_config(3, hidden_size=48), 1, indexer=True), other)
    bodies = {
        "differs from the loaded model in hidden_size": {"folder": str(other), "version": 1},
        "No such file": {"folder": str(tmp_path / "none"), "version": 1},
        "checksum is": {"folder": str(folders["second"]), "version": 1, "checksum": "00"},
        "version": {"folder": str(folders["second"]), "version": "new"},
    }
    for words, body in bodies.items():
        answer = ask(engine, "POST", "/load_weights", body)
        assert answer.status_code == 422 and words in answer.json()["error"]["message"]
    assert engine.asked == []


def test_a_worker_that_fails_is_told_and_the_version_stays(ask, folders):
    engine = NotingEngine()
    engine.broken = True
    answer = ask(engine, "POST", "/load_weights", {"folder": str(folders["second"]), "version": 4})
    assert answer.status_code == 500 and "a worker died" in answer.json()["error"]["message"]
    assert engine.asked == [("pause", "keep"), "resume"]
    assert ask(engine, "GET", "/health").status_code == 503
    engine.broken = False
    assert ask(engine, "GET", "/health").json()["version"] == 0


def test_all_else_is_vllms_behind_the_guard(ask):
    engine = NotingEngine()
    assert ask(engine, "GET", "/v1/models").text == "vLLM's own"
    assert ask(engine, "GET", "/v1/models", host="stranger.example").status_code == 403
    assert ask(engine, "POST", "/pause", origin="http://stranger.example").status_code == 403
    assert engine.asked == []
