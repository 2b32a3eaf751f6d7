"""Streams over the background thread: order, cancelling, pausing, new weights, failures, closing."""

import asyncio
import threading
import time

import pytest
from plain_forward import check_completion

from model.inference.async_engine import AsyncEngine, Stream
from model.inference.engine import Engine
from model.inference.request import QueueFull, SamplingParams
from tests.waiting import PATIENCE


def run(job, engine: Engine):
    async def main():
        runner = AsyncEngine(engine)
        try:
            return await asyncio.wait_for(job(runner), PATIENCE)
        finally:
            await asyncio.wait_for(runner.close(), PATIENCE)

    return asyncio.run(main())


def test_streams_carry_every_token_in_order(tiny_model):
    model = tiny_model(0)
    params = [SamplingParams(9, seed=n) for n in range(6)]

    async def job(engine):
        async def read(n):
            stream = engine.submit([1, 2, n], params[n])
            tokens = [token async for token in stream]
            assert [token async for token in stream] == []  # the end stays the end
            completion = await stream.done()
            assert completion is stream.completion and completion.tokens == tokens
            return completion

        return await asyncio.gather(*(read(n) for n in range(6)))

    for n, completion in enumerate(run(job, Engine(model))):
        check_completion({0: model}, [1, 2, n], params[n], completion, 1e-5)


def test_of_a_whole_answer_the_loop_hears_once(tiny_model, monkeypatch):
    model, params = tiny_model(1), [SamplingParams(9, seed=n) for n in range(6)]
    delivered = []
    deliver = Stream.deliver
    monkeypatch.setattr(Stream, "deliver", lambda self, e: delivered.append(self) or deliver(self, e))

    async def job(engine):
        begun = time.perf_counter()
        streams = [engine.submit([1, 2, n], params[n], whole=n % 2 == 0) for n in range(6)]
        completions = [await stream.done() for stream in streams]
        assert [delivered.count(stream) for stream in streams] == [1, 9] * 3
        assert all(begun < stream.first_token < time.perf_counter() for stream in streams)
        read = [[token async for token in stream] for stream in streams]
        assert read == [[] if n % 2 == 0 else completions[n].tokens for n in range(6)]
        return completions

    for n, completion in enumerate(run(job, Engine(model))):
        check_completion({0: model}, [1, 2, n], params[n], completion, 1e-5)


@pytest.fixture
def passes(monkeypatch):
    """``passes(engine)``: a semaphore without which the engine makes no pass."""

    def limit(engine: Engine) -> threading.Semaphore:
        allowed, step = threading.Semaphore(0), engine.step

        def wait_and_step():
            assert allowed.acquire(timeout=PATIENCE)
            return step()

        monkeypatch.setattr(engine, "step", wait_and_step)
        return allowed

    return limit


def test_readers_that_leave_cancel_their_requests(tiny_model, passes):
    engine = Engine(tiny_model(1), page_size=4, max_waiting=3)
    allowed = passes(engine)
    allowed.release(50)  # not enough for 110 tokens: both are under way when their readers leave

    async def job(runner):
        closed, left = (runner.submit([1, 2, n], SamplingParams(110)) for n in range(2))
        await anext(closed)
        closed.close()
        allowed.release()  # of the pass that begins with ending it
        assert (await closed.done()).finish == "cancelled"

        began = asyncio.Event()

        async def read():
            async for _ in left:
                began.set()

        reader = asyncio.create_task(read())
        await began.wait()
        reader.cancel()
        await asyncio.wait([reader])
        allowed.release(10_000)
        completion = await left.done()
        assert completion.finish == "cancelled" and len(completion.ids) < 110
        with pytest.raises(ValueError, match="holds no token"):
            runner.submit([], SamplingParams(1))
        await runner.pause()
        waiting = [runner.submit([1], SamplingParams(1)) for _ in range(3)]
        with pytest.raises(QueueFull):
            runner.submit([1], SamplingParams(1))
        waiting[0].close()
        assert (await waiting[0].done()).finish == "cancelled"  # also while paused
        runner.resume()
        assert [(await stream.done()).finish for stream in waiting[1:]] == ["length"] * 2

    run(job, engine)
    stats = engine.stats()
    assert stats["running"] == stats["prefix_pages"] - stats["prefix_pages_unused"] == 0


def test_weights_change_between_two_tokens(tiny_model, passes):
    model, old = tiny_model(2), tiny_model(2)
    new = {name: value.roll(1, 0) if name == "head.weight" else value.clone()
           for name, value in model.state_dict().items()}  # fmt: skip
    params = SamplingParams(60, seed=4)
    engine = Engine(model)
    allowed = passes(engine)

    async def job(runner):
        stream = runner.submit([1, 2, 3], params)
        allowed.release(10)
        for _ in range(5):
            await anext(stream)
        allowed.release()  # of a pass that has begun
        await runner.pause()
        allowed.release(10_000)
        held = runner.stats()["sampled_tokens"]
        with pytest.raises(ValueError, match="checksum"):
            await runner.load_weights(new, 6, "0")
        assert runner.version == 0
        await runner.load_weights(new, 6)
        await asyncio.sleep(0.1)
        assert runner.stats()["sampled_tokens"] == held and runner.version == 6
        runner.resume()
        return held, await stream.done()

    held, completion = run(job, engine)
    assert 5 <= held < 60
    assert [token.version for token in completion.tokens] == [0] * held + [6] * (60 - held)
    check_completion({0: old, 6: model}, [1, 2, 3], params, completion, 1e-5)


def test_a_failure_reaches_every_reader_and_the_next_request_is_served(tiny_model, monkeypatch):
    model = tiny_model(3)
    engine = Engine(model)

    async def job(runner):
        await runner.pause()
        streams = [runner.submit([1, n], SamplingParams(5)) for n in range(3)]
        whole = model.read
        monkeypatch.setattr(model, "read", lambda *_: 1 / 0)
        runner.resume()
        for stream in streams:
            assert [token async for token in stream] == []
            completion = await stream.done()
            assert completion.finish == "error" and "ZeroDivisionError" in completion.error
        model.read = whole
        assert (await runner.submit([1], SamplingParams(2)).done()).finish == "length"
        # Outside of the pass: everybody is told, and the engine goes on.
        plan = engine._scheduler.plan
        monkeypatch.setattr(engine._scheduler, "plan", lambda: 1 / 0)
        completion = await runner.submit([1], SamplingParams(2)).done()
        assert completion.finish == "error" and "ZeroDivisionError" in completion.error
        engine._scheduler.plan = plan
        assert (await runner.submit([1], SamplingParams(2)).done()).finish == "length"

    run(job, engine)


def test_closing_finishes_what_is_there_and_refuses_more(tiny_model):
    async def job(runner):
        stream = runner.submit([1, 2], SamplingParams(30))
        paused = AsyncEngine(Engine(tiny_model(5)))
        await paused.pause()
        held = paused.submit([1], SamplingParams(3))
        await paused.close()
        assert (await held.done()).finish == "cancelled"
        await runner.close()
        assert stream.completion is not None or (await stream.done()).finish == "length"
        with pytest.raises(RuntimeError, match="closed"):
            runner.submit([1], SamplingParams(1))
        with pytest.raises(RuntimeError, match="closed"):
            await runner.pause()

    run(job, Engine(tiny_model(4)))
