"""The gateway with real engines: the same tokens whatever runs beside, and sessions outlive their engine."""

import asyncio
import os
import signal

import aiohttp
import pytest

from model.chat.renderer import render
from model.chat.tokens import MODES
from model.hub import load_folder
from model.inference.generate import score
from tasks.rl.engines import client as client_module
from tasks.rl.engines import watch as watch_module
from tasks.rl.engines.client import ContextFull, EngineClient, Sampling
from tasks.rl.engines.pool import FILE
from tasks.rl.engines.watch import Watch
from tasks.rl.gateway.gateway import Gateway, UnknownSession
from tasks.rl.router import NoEngine, Router
from tests.waiting import wait_until

ASKED = [{"role": "user", "content": "what is 1+2"}]


def with_gateway(pool, tokenizer, run, tokens=12):
    """Run a coroutine function on a gateway over the engines; returns what it returns, and the deaths."""
    deaths = []

    async def main():
        async with aiohttp.ClientSession() as http:
            router = Router()
            clients = {name: EngineClient(url, http, True) for name, url in pool.addresses.items()}
            for name in clients:
                router.join(name)
            note = lambda engine, reason: deaths.append(engine)  # noqa: E731
            return await run(Gateway(tokenizer, router, clients, Sampling(tokens), note))

    return asyncio.run(main()), deaths


async def dialogue(gateway, name, seed, turns=2):
    gateway.open(name, seed)
    messages = list(ASKED)
    for turn in range(turns):
        reply = await gateway.chat(name, messages, None, MODES["preserved"])
        messages += [reply.message, {"role": "user", "content": f"and {turn}"}]
    return gateway.close(name)


def test_sessions_record_what_the_engines_sampled(pool, tokenizer, checkpoint):
    async def run(gateway):
        found = await asyncio.gather(*(dialogue(gateway, f"r{n}", n) for n in range(6)))
        assert gateway.sessions == 0 and sum(gateway.router.load().values()) == 0
        assert 0 < gateway.counts["reused"] < gateway.counts["prompt"]
        return found

    sessions, _ = with_gateway(pool, tokenizer, run)
    model = load_folder(checkpoint)
    for session in sessions:
        for segment in session.segments:
            exact = score(model, [segment.ids], attention="sparse")[0]
            sampled = [place for place, drawn in enumerate(segment.sampled) if drawn]
            assert sampled and segment.sampled[0] is False
            assert [segment.logprobs[place] for place in sampled] == pytest.approx(
                [exact[place - 1] for place in sampled], abs=1e-5
            )
            assert len(segment.experts) in (len(segment) - 1, len(segment))
    alone, _ = with_gateway(pool, tokenizer, lambda gateway: dialogue(gateway, "other name", 4))
    assert [s.ids for s in alone.segments] == [s.ids for s in sessions[4].segments]


def test_a_session_goes_on_at_another_engine(pool, tokenizer):
    undisturbed, _ = with_gateway(pool, tokenizer, lambda gateway: dialogue(gateway, "r", 1, turns=3))

    async def run(gateway):
        gateway.open("r", 1)
        first = await gateway.chat("r", ASKED, None, MODES["preserved"])
        engine = gateway.router.route("r")
        os.kill(pool.pids[engine], signal.SIGKILL)
        wait_until(lambda: not pool._children[engine].alive, "the end of the engine")
        messages = [*ASKED, first.message, {"role": "user", "content": "and 0"}]
        second = await gateway.chat("r", messages, None, MODES["preserved"])
        messages += [second.message, {"role": "user", "content": "and 1"}]
        await gateway.chat("r", messages, None, MODES["preserved"])
        assert gateway.router.engines == [name for name in pool.addresses if name != engine]
        return gateway.close("r"), engine

    (session, engine), deaths = with_gateway(pool, tokenizer, run)
    assert deaths == [engine]
    assert [s.ids for s in session.segments] == [s.ids for s in undisturbed.segments]


def test_what_waits_for_a_hanging_engine_goes_on_elsewhere(pool, tokenizer, monkeypatch):
    """Found by its heartbeats, as the request itself would wait for ever; it is back once it answers."""
    monkeypatch.setattr(client_module, "SECONDS_FOR_LIFE", 4.0)
    monkeypatch.setattr(watch_module, "SECONDS_BETWEEN_BEATS", 0.1)
    undisturbed, _ = with_gateway(pool, tokenizer, lambda gateway: dialogue(gateway, "r", 1))

    async def run(gateway):
        http = gateway.clients["engine-0"]._http
        watch = Watch(pool.scratch / FILE, gateway, lambda url: EngineClient(url, http, True))
        watch.look()
        gateway.open("r", 1)
        engine = gateway.router.route("r")
        os.kill(pool.pids[engine], signal.SIGSTOP)
        listening = asyncio.create_task(watch.listen())
        try:
            first = await gateway.chat("r", ASKED, None, MODES["preserved"])
            assert gateway.router.route("r") != engine and engine not in gateway.router.engines
            messages = [*ASKED, first.message, {"role": "user", "content": "and 0"}]
            await gateway.chat("r", messages, None, MODES["preserved"])
        finally:
            os.kill(pool.pids[engine], signal.SIGCONT)
        while engine not in gateway.router.engines:
            await asyncio.sleep(0.05)
        listening.cancel()
        return gateway.close("r"), engine

    (session, engine), deaths = with_gateway(pool, tokenizer, run)
    assert deaths == [engine]
    assert [s.ids for s in session.segments] == [s.ids for s in undisturbed.segments]


def test_without_any_engine_it_says_so(pool, tokenizer):
    async def run(gateway):
        gateway.open("r", 1)
        for name in gateway.router.engines:
            gateway.router.leave(name)
        with pytest.raises(NoEngine, match="no engine is registered"):
            await gateway.chat("r", ASKED, None, MODES["off"])

    with_gateway(pool, tokenizer, run)


class Late:
    """An engine whose answer waits until it may come."""

    def __init__(self, client):
        self._client, self.answered, self.free = client, asyncio.Event(), asyncio.Event()

    async def sample(self, *arguments):
        answer = await self._client.sample(*arguments)
        self.answered.set()
        await self.free.wait()
        return answer


@pytest.mark.parametrize("again", [False, True], ids=["closed", "opened again"])
def test_an_answer_after_the_end_is_written_nowhere(pool, tokenizer, again):
    async def run(gateway):
        gateway.open("r", 1)
        first = await gateway.chat("r", ASKED, None, MODES["preserved"])
        gateway.clients |= {name: Late(client) for name, client in gateway.clients.items()}
        late = gateway.clients[gateway.router.route("r")]
        messages = [*ASKED, first.message, {"role": "user", "content": "and"}]
        asking = asyncio.create_task(gateway.chat("r", messages, None, MODES["preserved"]))
        await late.answered.wait()
        (segment,) = gateway.close("r").segments
        before = list(segment.ids)
        if again:
            gateway.open("r", 1)
        late.free.set()
        with pytest.raises(UnknownSession, match="closed before its answer came"):
            await asking
        assert segment.ids == before and len(segment.turns) == 1
        if again:
            assert gateway.close("r").branches == []
        assert set(gateway.router.load().values()) == {0}

    with_gateway(pool, tokenizer, run)


def test_bad_requests(pool, tokenizer):
    async def run(gateway):
        with pytest.raises(UnknownSession, match="'r' is open"):
            await gateway.chat("r", ASKED, None, MODES["off"])
        gateway.open("r", 1)
        with pytest.raises(ValueError, match="open already"):
            gateway.open("r", 2)
        with pytest.raises(ValueError, match="its role is 'robot'"):
            await gateway.chat("r", [{"role": "robot"}], None, MODES["off"])
        long = [{"role": "user", "content": "x y " * 300}]
        with pytest.raises(ContextFull):
            await gateway.chat("r", long, None, MODES["off"])
        reply = await gateway.chat("r", ASKED, None, MODES["off"])
        assert reply.prompt_tokens == gateway.counts["prompt"] and reply.tokens == gateway.counts["sampled"]
        opening = render(tokenizer, ASKED, None, "off", True).ids
        (segment,) = gateway.close("r").segments
        assert segment.ids[: len(opening)] == opening and sum(segment.sampled) == reply.tokens
        assert reply.version == pool.version

    with_gateway(pool, tokenizer, run)
