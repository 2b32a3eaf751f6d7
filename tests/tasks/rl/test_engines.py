"""Engines in processes of their own: new weights reach them all, those that die come back with the newest."""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

import aiohttp
import aiohttp.web
import pytest
import torch

from model.hub import load_folder
from model.inference.buckets import write_buckets
from model.inference.engine import Engine
from model.inference.request import SamplingParams
from pipeline.errors import UserError
from tasks.rl.engines import pool as pool_module
from tasks.rl.engines import pulse as pulse_module
from tasks.rl.engines.client import ContextFull, EngineClient, EngineDied, Sampling
from tasks.rl.engines.memory import shared_folder
from tasks.rl.engines.pool import EnginePool, visible_card
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
        for seed in (3, 4):
            answer = ask(address, "sample", PROMPT, Sampling(8), seed, experts=True)
            params = SamplingParams(8, seed=seed, stop_ids=frozenset(engine_stops(checkpoint)))
            (expected,) = engine.generate([PROMPT], params)
            assert answer.ids == expected.ids and set(answer.versions) == {pool.version}
            assert answer.logprobs == pytest.approx([token.logprob for token in expected.tokens], abs=1e-6)
            assert (answer.experts == expected.experts).all()
        assert ask(address, "figures")["glm5_engine_sampled_tokens"] > 0


def engine_stops(checkpoint):
    from model.chat.tokenizer import Tokenizer

    return Tokenizer.load(checkpoint).stop_ids


def first_words(checkpoint, model):
    params = SamplingParams(8, seed=3, stop_ids=engine_stops(checkpoint))
    return Engine(model).generate([PROMPT], params)[0].ids


def assert_all_answer(pool, ids, version):
    """Each engine with these weights; what it read before under others is forgotten."""
    assert len(pool.addresses) == 2
    for address in pool.addresses.values():
        answer = ask(address, "sample", PROMPT, Sampling(8), 3)
        assert answer.ids == ids and set(answer.versions) == {version}


def test_new_weights_reach_all_and_one_that_dies_meanwhile_gets_them_too(pool, checkpoint):
    """One hangs as the weights come, and is killed before it could take them."""
    model, version = changed(checkpoint), pool.version + 1
    assert_all_answer(pool, first_words(checkpoint, load_folder(checkpoint)), pool.version)
    victim, address = pool.pids["engine-1"], pool.addresses["engine-1"]
    os.kill(victim, signal.SIGSTOP)
    pushing = threading.Thread(target=pool.push, args=(model, version))
    pushing.start()
    wait_until(lambda: ask(pool.addresses["engine-0"], "version") == version, "the weights at the other")
    assert len(list(shared_folder(pool.scratch).glob(f"version-{version}/*.safetensors"))) > 3
    assert pushing.is_alive()
    os.kill(victim, signal.SIGKILL)
    pushing.join()
    told = json.loads((pool.scratch / "engines.json").read_text())
    assert told["engines"] == pool.addresses and list(pool.addresses) == ["engine-0"]
    with pytest.raises(EngineDied, match="does not answer"):
        ask(address, "version")
    assert pool.look_after() == ["engine-1"] and pool.look_after() == []
    assert pool.pids["engine-1"] != victim
    assert_all_answer(pool, first_words(checkpoint, model), version)
    told = json.loads((pool.scratch / "engines.json").read_text())
    assert told == {"version": version, "engines": pool.addresses}


def damage(monkeypatch, times):
    """The first ``times`` versions that are written get a bucket with one bit changed."""
    left, write = [None] * times, pool_module.write_buckets

    def write_damaged(state, folder, *rest):
        checksum = write(state, folder, *rest)
        if left:
            left.pop()
            file = folder / "00001.safetensors"
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
        return checksum

    monkeypatch.setattr(pool_module, "write_buckets", write_damaged)


def test_a_damaged_bucket_is_sent_again(pool, checkpoint, monkeypatch, capsys):
    model, version = changed(checkpoint), pool.version + 1
    damage(monkeypatch, 1)
    pool.push(model, version)
    printed = capsys.readouterr().out
    assert "sent once more" in printed and "bucket 00001.safetensors is damaged" in printed
    assert_all_answer(pool, first_words(checkpoint, model), version)
    damage(monkeypatch, 2)
    with pytest.raises(UserError, match="do not take version .*bucket 00001.safetensors is damaged"):
        pool.push(load_folder(checkpoint), version + 1)
    assert_all_answer(pool, first_words(checkpoint, model), version)


def test_weights_that_come_too_late_change_nothing(pool, checkpoint, tmp_path):
    address, before = pool.addresses["engine-0"], pool.version
    checksum = write_buckets(changed(checkpoint).state_dict(), tmp_path, before + 1)
    body = {"folder": str(tmp_path), "version": before + 1, "checksum": checksum, "seconds": 1e-9}
    with pytest.raises(ValueError, match="422.*come too late: at their deadline 0 of 1 buckets were read"):
        ask(address, "_post", "/load_weights", body, 60)
    pool.push(load_folder(checkpoint), before + 2)
    with pytest.raises(ValueError, match=f"version {before + 1} comes too late: .* has version {before + 2}"):
        ask(address, "load_weights", tmp_path, before + 1, checksum)
    assert_all_answer(pool, first_words(checkpoint, load_folder(checkpoint)), before + 2)


def test_an_engine_that_hangs_is_ended_and_started_again(pool, monkeypatch):
    monkeypatch.setattr(pulse_module, "SECONDS_BETWEEN_BEATS", 0.05)
    monkeypatch.setattr(pulse_module, "SECONDS_FOR_LIFE", 2.0)
    victim = pool.pids["engine-1"]
    os.kill(victim, signal.SIGSTOP)
    assert wait_until(pool.look_after, "the engine's restart") == ["engine-1"]
    assert pool.pids["engine-1"] != victim and not os.path.exists(f"/proc/{victim}/exe")
    assert ask(pool.addresses["engine-1"], "version") == pool.version


def test_one_that_dies_as_it_is_started_again_is_tried_once_more(pool, monkeypatch):
    child = pool._children["engine-1"]
    with monkeypatch.context() as patch:
        patch.setattr(child, "command", [sys.executable, "-c", "raise SystemExit('no room on the card')"])
        child.kill()
        assert pool.look_after() == ["engine-1"]
        assert pool.addresses.keys() == {"engine-0"}
    assert pool.look_after() == ["engine-1"]
    assert ask(pool.addresses["engine-1"], "version") == pool.version
    assert pool.look_after() == []


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


def test_an_engine_that_is_busy_is_asked_again():
    calls = []

    async def serve(request):
        calls.append(request)
        busy = len(calls) < 3
        return aiohttp.web.json_response({"version": 7}, status=429 if busy else 200)

    async def run():
        app = aiohttp.web.Application()
        app.router.add_get("/health", serve)
        runner = aiohttp.web.AppRunner(app)
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with aiohttp.ClientSession() as http:
            found = await EngineClient(f"http://127.0.0.1:{runner.addresses[0][1]}", http).version()
        await runner.cleanup()
        return found

    assert asyncio.run(run()) == 7 and len(calls) == 3


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
        folder = shared_folder(tmp_path)
        assert folder.exists()
        os.kill(pool.pids["engine-0"], signal.SIGKILL)
        wait_until(lambda: not pool._children["engine-0"].alive, "the end of the engine")
        with pytest.raises(UserError, match="(?s)engine-0 has died 1 times.*status -9"):
            pool.look_after()
    assert not folder.exists() and not os.path.exists(f"/proc/{pool.pids['engine-0']}/exe")
    assert json.loads((tmp_path / "engines.json").read_text())["engines"] == {}


def test_engines_use_the_cards_that_their_parent_may_use():
    def cards(count, visible):
        return [visible_card(number, count, visible) for number in range(3)]

    assert cards(0, None) == ["", "", ""]
    assert cards(1, None) == ["0", "0", "0"] and cards(1, "3") == ["3", "3", "3"]
    assert cards(3, None) == ["1", "2", "1"]  # the first is the trainer's
    assert cards(3, "4,6,GPU-1") == ["6", "GPU-1", "6"]
