"""Engines in processes of their own: new weights reach them all, those that die come back with the newest."""

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest
import torch

from model.hub import load_folder
from model.inference.engine import Engine
from model.inference.generate import score
from model.inference.request import SamplingParams
from pipeline.errors import UserError
from tasks.rl.engines import pool as pool_module
from tasks.rl.engines.client import ContextFull, EngineClient, EngineDied, Sampling
from tasks.rl.engines.pool import EnginePool
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
PROMPT = [5, 6, 7, 8]


def ask(address, verb, *arguments, experts=False):
    async def run():
        async with aiohttp.ClientSession() as http:
            return await getattr(EngineClient(address, http, experts), verb)(*arguments)

    return asyncio.run(run())


def changed(checkpoint):
    model = load_folder(checkpoint)
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.roll(1, 0))
    return model


def test_answers_are_the_engines_own(pool, checkpoint):
    engine = Engine(load_folder(checkpoint), record_experts=True)
    for address in pool.addresses.values():
        answers = ask(address, "sample", PROMPT, Sampling(8), 3, 2, experts=True)
        for number, answer in enumerate(answers):
            (expected,) = engine.generate([PROMPT], SamplingParams(8, seed=3 + number, stop_ids=frozenset(
                engine_stops(checkpoint))))  # fmt: skip
            assert answer.ids == expected.ids and set(answer.versions) == {pool.version}
            assert answer.logprobs == pytest.approx([token.logprob for token in expected.tokens], abs=1e-6)
            assert (answer.experts == expected.experts).all()
        assert ask(address, "figures")["glm5_engine_sampled_tokens"] > 0


def engine_stops(checkpoint):
    from model.chat.tokenizer import Tokenizer

    return Tokenizer.load(checkpoint).stop_ids


def test_likelihoods_are_those_of_the_training_forward(pool, checkpoint):
    rows = [[5, 6, 7, 8, 9, 10], [3, 4]]
    found = ask(pool.addresses["engine-0"], "score", rows)
    expected = score(load_folder(checkpoint), rows, attention="sparse")
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs.tolist(), abs=1e-5)


def test_new_weights_reach_all_and_a_dead_engine_gets_them_too(pool, checkpoint):
    model = changed(checkpoint)
    version = pool.version + 1
    seconds = pool.push(model, version)
    assert seconds["load_s"] > 0
    (expected,) = Engine(model).generate(
        [PROMPT], SamplingParams(8, seed=3, stop_ids=engine_stops(checkpoint))
    )
    for address in pool.addresses.values():
        (answer,) = ask(address, "sample", PROMPT, Sampling(8), 3)
        assert answer.ids == expected.ids and set(answer.versions) == {version}
    victim = pool.pids["engine-1"]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not pool._children["engine-1"].alive, "the end of the engine")
    with pytest.raises(EngineDied, match="does not answer"):
        ask(pool.addresses["engine-1"], "version")
    assert pool.look_after() == ["engine-1"] and pool.look_after() == []
    assert pool.pids["engine-1"] != victim
    (answer,) = ask(pool.addresses["engine-1"], "sample", PROMPT, Sampling(8), 3)
    assert answer.ids == expected.ids and set(answer.versions) == {version}
    told = json.loads((pool.scratch / "engines.json").read_text())
    assert told == {"version": version, "engines": pool.addresses} and len(told["engines"]) == 2


def test_a_connection_that_the_server_closed_is_no_death():
    """A server that hangs up on every other request, as one whose patience with a connection ran out."""
    calls = []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        calls.append(head)
        if len(calls) % 2 == 0:
            body = b'{"version": 7}'
            length = f"content-length: {len(body)}\r\n".encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + length + b"\r\n" + body)
            await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, aiohttp.ClientSession() as http:
            return [await EngineClient(address, http).version() for _ in range(3)]

    assert asyncio.run(run()) == [7, 7, 7] and len(calls) == 6


def test_requests_that_cannot_be_answered(pool):
    address = pool.addresses["engine-0"]
    with pytest.raises(ContextFull):
        ask(address, "sample", [5] * 256, Sampling(8), 0)
    with pytest.raises(ValueError, match="no token"):
        ask(address, "sample", [10**6], Sampling(8), 0)
    with pytest.raises(EngineDied):
        ask("http://127.0.0.1:9", "sample", [5], Sampling(8), 0)


def test_an_engine_that_does_not_start_is_explained(tmp_path):
    with pytest.raises(UserError, match="(?s)a rollout engine does not start.*status 1.*no config.json"):
        with EnginePool(tmp_path, count=1, scratch=tmp_path / "run", threads=1):
            pass


def test_one_that_dies_again_and_again_ends_the_run_and_leaves_nothing_behind(
    checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setattr(pool_module, "MOST_STARTS", 0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with EnginePool(checkpoint, count=1, scratch=tmp_path, threads=1) as pool:
        pool.push(load_folder(checkpoint), 1)
        folder = pool_module._shared_folder(tmp_path)
        assert folder.exists()
        os.kill(pool.pids["engine-0"], signal.SIGKILL)
        wait_until(lambda: not pool._children["engine-0"].alive, "the end of the engine")
        with pytest.raises(UserError, match="(?s)engine-0 has died 1 times.*status -9"):
            pool.look_after()
    assert not folder.exists() and not os.path.exists(f"/proc/{pool.pids['engine-0']}/exe")
    assert json.loads((tmp_path / "engines.json").read_text())["engines"] == {}
