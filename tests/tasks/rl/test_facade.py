"""The gateway's OpenAI interface with the real ``openai`` package; agents that are programs of their own."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from environments.interface import Task
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import MODES
from model.hub import load_folder
from model.inference.engine import Engine
from model.inference.server.limits import Limits as ServerLimits
from tasks.rl.engines.client import EngineDied, Sampling
from tasks.rl.engines.local import LocalEngine
from tasks.rl.gateway import facade as facade_module
from tasks.rl.gateway.facade import Facade
from tasks.rl.gateway.gateway import Gateway, UnknownSession
from tasks.rl.gateway.program import PASSED, roll_out_program
from tasks.rl.rollout import Assignment, Limits
from tasks.rl.router import Router
from tests.waiting import PATIENCE, wait_until

from bash_agent import TOOL  # isort: skip
from saying_model import SHARP, one_that_says  # isort: skip

openai = pytest.importorskip("openai")
HERE = Path(__file__).parent
ASKED = [{"role": "user", "content": "what is there"}]
OFF = MODES["off"]


class Held:
    """A real engine that answers once it may."""

    def __init__(self, engine):
        self._engine = engine
        self.asked, self.free, self.dead = asyncio.Event(), asyncio.Event(), False
        self.free.set()

    async def sample(self, *arguments):
        if self.dead:
            raise EngineDied("killed")
        self.asked.set()
        await self.free.wait()
        return await self._engine.sample(*arguments)


def with_facade(folder: Path, run: Callable[[Facade, Gateway], Awaitable], limits=facade_module.LIMITS):
    """Run a coroutine function with a facade over an engine of this process that records experts."""

    async def main():
        tokenizer = Tokenizer.load(folder)
        engine = LocalEngine(Engine(load_folder(folder), record_experts=True), tokenizer.stop_ids)
        router = Router()
        router.join("engine")
        gateway = Gateway(tokenizer, router, {"engine": Held(engine)}, Sampling(24))
        try:
            async with Facade(gateway, limits) as facade:
                return await run(facade, gateway)
        finally:
            await engine.close()

    return asyncio.run(main())


def client_of(address: str):
    return openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=PATIENCE)


async def speak(address: str, turns: int) -> list:
    """A dialogue of an agent that sends back what it was told, in its own words for calls and text."""
    messages, answers = list(ASKED), []
    async with client_of(address) as client:
        for turn in range(turns):
            answer = await client.chat.completions.create(
                model="openai/any", messages=messages, tools=[TOOL], temperature=0.2
            )
            answers.append(answer)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if message.content:  # some hand back text in parts
                messages[-1]["content"] = [{"type": "text", "text": message.content}]
            for call in message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result {turn}"})
            if not message.tool_calls:
                messages.append({"role": "user", "content": f"and {turn}"})
    return answers


async def speak_inside(gateway: Gateway, name: str, seed: int, turns: int, tools=(TOOL,)):
    """The same dialogue without HTTP."""
    tools = tools and list(tools)
    gateway.open(name, seed)
    messages = list(ASKED)
    for turn in range(turns):
        message = (await gateway.chat(name, messages, tools, OFF)).message
        replies = [{"role": "tool", "content": f"result {turn}"} for _ in message.get("tool_calls", ())]
        messages += [message, *(replies or [{"role": "user", "content": f"and {turn}"}])]
    return gateway.close(name)


def assert_same(one, other):
    assert len(one.segments) == len(other.segments) > 0
    for mine, theirs in zip(one.segments, other.segments, strict=True):
        assert (mine.ids, mine.sampled, mine.versions) == (theirs.ids, theirs.sampled, theirs.versions)
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)
        assert (mine.experts == theirs.experts).all() and len(mine.experts)


def test_an_agents_tokens_are_those_of_a_rollout_without_http(shell_user):
    async def run(facade, gateway):
        found = []
        for seed in range(2):
            address = facade.open(f"r{seed}", seed, OFF, turns=4)
            answers = await speak(address, 4)
            guest, session = facade.close(f"r{seed}")
            assert session.counts == {"start": 1, "append": 3} and guest.answered == 4
            assert len(guest.messages) >= 8 and guest.messages[0] == ASKED[0]
            sampled = sum(answer.usage.completion_tokens for answer in answers)
            assert sampled == sum(session.segments[0].sampled)
            assert answers[-1].usage.total_tokens == len(session.segments[0])
            assert_same(session, await speak_inside(gateway, "inside", seed, 4))
            found += [answer.choices[0] for answer in answers]
        assert gateway.sessions == 0 and set(gateway.router.load().values()) == {0}
        return found

    choices = with_facade(shell_user, run)
    assert {choice.finish_reason for choice in choices} == {"stop", "tool_calls"}
    calls = [call for choice in choices for call in choice.message.tool_calls or ()]
    assert {call.function.name for call in calls} == {"bash"}
    assert {call.function.arguments for call in calls} == {'{"cmd": "echo *"}'}
    assert {choice.message.content for choice in choices if not choice.message.tool_calls} == {"fin"}


def test_a_stream_is_the_same_answer(shell_user):
    async def run(facade, gateway):
        seen = set()
        for seed in range(20):
            [whole] = await speak(facade.open(f"w{seed}", seed, OFF, 9), 1)
            async with client_of(facade.open(f"s{seed}", seed, OFF, 9)) as client:
                chunks = [chunk async for chunk in await client.chat.completions.create(
                    model="policy", messages=ASKED, tools=[TOOL], stream=True,
                    stream_options={"include_usage": True},
                )]  # fmt: skip
            deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
            message = whole.choices[0].message
            assert "".join(delta.content or "" for delta in deltas) == (message.content or "")
            calls = [call for delta in deltas for call in delta.tool_calls or ()]
            told = [(call.id, call.function.name, call.function.arguments) for call in calls]
            assert told == [
                (call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()
            ]
            assert chunks[-1].usage == whole.usage
            assert_same(facade.close(f"w{seed}")[1], facade.close(f"s{seed}")[1])
            seen.add(bool(calls))
            if seen == {True, False}:
                return
        raise AssertionError(f"only {seen}")

    with_facade(shell_user, run)


def test_an_answer_that_nobody_waited_for_is_sampled_once(shell_user):
    """The agent's connection breaks, before the answer and after it; it asks again as clients do."""

    async def run(facade, gateway):
        engine = gateway.clients["engine"]
        address = facade.open("r", 3, OFF, turns=5)
        engine.free.clear()
        lost = asyncio.create_task(speak(address, 1))
        await engine.asked.wait()
        lost.cancel()
        while any(gateway._calls["engine"]):
            await asyncio.sleep(0.01)
        engine.free.set()
        await speak(address, 1)  # and this answer is lost on its way
        await speak(address, 2)
        session = facade.close("r")[1]
        assert session.counts == {"start": 1, "append": 2, "realign": 1}
        [segment] = session.segments
        assert len(segment.turns) == 2
        assert segment.ids.count(gateway.tokenizer.ids_by_name["<|assistant|>"]) == 2

    with_facade(shell_user, run)


def test_dead_engines_are_waited_for(shell_user, monkeypatch):
    async def run(facade, gateway):
        engine = gateway.clients["engine"]
        engine.dead = True
        address = facade.open("r", 3, OFF, turns=5)
        waiting = asyncio.create_task(speak(address, 1))
        while gateway.router.engines:
            await asyncio.sleep(0.01)
        engine.dead = False
        gateway.router.join("engine")
        await waiting
        assert_same(facade.close("r")[1], await speak_inside(gateway, "r", 3, 1))
        gateway.router.leave("engine")
        monkeypatch.setattr(facade_module, "SECONDS_WITHOUT_ENGINE", 0.0)
        with pytest.raises(openai.InternalServerError, match="no engine is registered") as refused:
            await speak(facade.open("s", 3, OFF, turns=5), 1)
        assert refused.value.status_code == 503 and refused.value.code == "no_engine"
        assert refused.value.response.headers["retry-after"]
        gateway.router.join("engine")
        engine.free.clear()
        engine.asked.clear()
        late = asyncio.create_task(speak(facade.open("t", 3, OFF, turns=5), 1))
        await engine.asked.wait()
        facade.close("t")
        engine.dead = True
        gateway.lose("engine", "it hangs")
        gateway.router.join("engine")
        with pytest.raises(openai.NotFoundError):
            await late
        assert gateway.router.load() == {"engine": 0}

    with_facade(shell_user, run)


ONE = b'{"messages": [{"role": "user", "content": %s}]%s}'
REFUSED = [
    (b"{", 400, "invalid_json", "is not JSON"),
    (b'{"messages": []}', 422, None, "messages: "),
    (ONE % (b'[{"type": "image_url"}]', b""), 422, None, "messages"),
    (ONE % (b'"a"', b', "n": 2'), 422, None, "n is not supported"),
    (ONE % (b'"a"', b', "stop": "b"'), 422, None, "stop is not supported"),
    (ONE % (b'"a"', b', "logprobs": true'), 422, None, "logprobs is not supported"),
    (ONE % (b'"%s"' % (b"x y " * 1500), b""), 400, "context_length_exceeded", "fill the model's context"),
    (ONE % (b'"%s"' % (b"x" * 9000), b""), 413, None, "larger than 8000"),
]


def test_what_cannot_be_answered_is_one_clear_error(shell_user):
    async def run(facade, gateway):
        address = facade.open("r", 1, OFF, turns=5)
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            for body, status, code, words in REFUSED:
                answer = await http.post(f"{address}/chat/completions", content=body)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (status, code), (words, error)
                assert words in error["message"]
            good = await http.post(f"{address}/chat/completions", json={"messages": ASKED})
        assert good.status_code == 200, "the session is as it was"
        session = facade.close("r")[1]
        assert_same(session, await speak_inside(gateway, "r", 1, 1, tools=None))

    with_facade(shell_user, run, ServerLimits(body_bytes=8000))


def test_sessions_end(shell_user):
    async def run(facade, gateway):
        address = facade.open("r", 1, OFF, turns=2)
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{facade.url}/health")).json() == {
                "status": "ok", "sessions": 1, "engines": 1
            }  # fmt: skip
            assert (await http.get(f"{facade.url}/anything")).status_code == 404
        async with client_of(address) as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
        with pytest.raises(openai.UnprocessableEntityError, match="has had its 2 answers") as refused:
            await speak(address, 3)
        assert refused.value.code == "session_ended"
        facade.close("r")
        with pytest.raises(openai.NotFoundError, match="no such session"):
            await speak(address, 1)
        with pytest.raises(UnknownSession):
            facade.close("r")

    with_facade(shell_user, run)


def test_a_turn_that_is_not_in_the_chat_format_is_the_last(tmp_path):
    folder = one_that_says(
        tmp_path, [["</think>", "</arg_value>", "<|user|>"]], context=1024, sharpness=SHARP
    )

    async def run(facade, gateway):
        address = facade.open("r", 1, OFF, turns=9)
        with pytest.raises(openai.UnprocessableEntityError, match="not in the chat format") as refused:
            await speak(address, 2)
        assert refused.value.code == "session_ended"
        assert facade.close("r")[0].fault

    with_facade(folder, run)


def assignment(seed: int) -> Assignment:
    task = Task("shell/look/1", "shell", "look", tuple(ASKED), (TOOL,), {}, 1, seed, False)
    return Assignment(f"group-1/{seed}", "group-1", task, "off", seed)


def test_a_bash_loop_in_a_process_of_its_own(shell_user, tmp_path):
    """Its commands run, their output is read as context, and the verdict is what it said of itself."""
    (tmp_path / "hint").write_text("")
    command = [sys.executable, str(HERE / "bash_agent.py"), str(tmp_path)]

    async def run(facade, gateway):
        limits = Limits(turns=6)
        found = await asyncio.gather(*(
            roll_out_program(assignment(seed), command, facade, limits) for seed in (1, 2)
        ))  # fmt: skip
        assert gateway.sessions == 0
        return found, gateway.tokenizer

    found, tokenizer = with_facade(shell_user, run)
    assert any(trajectory.reward for trajectory in found)
    for trajectory in found:
        [segment] = trajectory.segments
        calls = segment.ids.count(tokenizer.ids_by_name["<tool_call>"]) - 1  # one shows the format
        results = segment.ids.count(tokenizer.ids_by_name["<tool_response>"])
        assert [turn.kind for turn in segment.turns] == ["start"] + ["append"] * (len(segment.turns) - 1)
        assert tokenizer.decode(segment.ids).count("hint") == results
        assert trajectory.reason in (f"{calls} commands", "session_ended")
        assert trajectory.reward == float(trajectory.reason == f"{calls} commands" and calls > 0)
        assert trajectory.tokens == sum(segment.sampled) > 0


HANGS = """
import subprocess, sys, time
subprocess.Popen(["sleep", "1000"], env={"MARK": sys.argv[1]})
time.sleep(1000)
"""
PROGRAMS = [
    ('print(\'{"reward": 0.25, "reason": "a quarter"}\')', 0.25, "a quarter"),
    ('print(\'{"reward": null, "reason": "no judge"}\')', None, "no judge"),
    ("import sys; sys.exit('it broke')", None, "ended with status 1: it broke"),
    ("print('{\"reward\": NaN}')", None, "gave nan for a reward"),
    ("print('{\"reward\": true}')", None, "gave True for a reward"),
    ("print('good bye')", None, "ended with 'good bye' instead of a reward"),
    ("pass", None, "ended with '' instead of a reward"),
    (HANGS, None, "no verdict in 2 s"),
]


def test_what_programs_end_with(shell_user, tmp_path):
    async def run(facade, gateway):
        for program, reward, words in PROGRAMS:
            limits = Limits(seconds=2 if program == HANGS else PATIENCE, attempts=1)
            command = [sys.executable, "-I", "-S", "-c", program, str(tmp_path)]
            trajectory = await roll_out_program(assignment(1), command, facade, limits)
            assert trajectory.reward == reward and words in trajectory.reason
            assert trajectory.extra == {}

    with_facade(shell_user, run)
    wait_until(
        lambda: not [path for path in Path("/proc").glob("[0-9]*/environ") if marked(path, tmp_path)],
        "the end of all that programs started",
    )


SHOWS = "import json, os; print(json.dumps({'reward': 0, 'reason': ' '.join(sorted(os.environ))}))"


def test_programs_get_no_secrets(shell_user, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret")
    monkeypatch.setenv("OPENAI_ORG_ID", "ours")
    monkeypatch.setenv("TMPDIR", "/tmp")

    async def run(facade, gateway):
        command = [sys.executable, "-I", "-S", "-c", SHOWS]
        return await roll_out_program(assignment(1), command, facade, Limits(seconds=PATIENCE))

    shown = set(with_facade(shell_user, run).reason.split()) - {"LC_CTYPE"}  # Python itself may set it
    assert {"PATH", "TMPDIR", "OPENAI_BASE_URL", "OPENAI_API_KEY"} <= shown
    assert shown <= {*PASSED, "OPENAI_BASE_URL", "OPENAI_API_KEY"}


LEAVES = """
import os, subprocess, sys, time, urllib.request
address, folder = os.environ["OPENAI_BASE_URL"], sys.argv[1]
if len(sys.argv) == 2:
    child = subprocess.Popen([sys.executable, "-I", "-S", __file__, folder, "child"], start_new_session=True)
    while not os.path.exists(folder + "/asks"):
        time.sleep(0.01)
    print('{"reward": null, "reason": "no judge"}')
else:
    open(folder + "/asks", "w").close()
    body = b'{"messages": [{"role": "user", "content": "late"}]}'
    kind = {"content-type": "application/json"}
    request = urllib.request.Request(address + "/chat/completions", body, kind)
    try:
        urllib.request.urlopen(request)
        said = "answered"
    except urllib.error.HTTPError as error:
        said = str(error.code)
    open(folder + "/said.new", "w").write(said)
    os.rename(folder + "/said.new", folder + "/said")
"""


def test_who_left_the_process_group_writes_into_no_trajectory(shell_user, tmp_path):
    """Its answer comes once its rollout is over, and another attempt at it under way."""
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES)

    async def run(facade, gateway):
        engine = gateway.clients["engine"]
        engine.free.clear()
        address = facade.open("group-1/1", 1, OFF, turns=1)
        asking = asyncio.create_task(speak(address, 1))
        await engine.asked.wait()
        _, first = facade.close("group-1/1")
        facade.open("group-1/1", 1, OFF, turns=1)
        engine.free.set()
        with pytest.raises(openai.NotFoundError, match="has ended"):
            await asking
        assert facade.close("group-1/1")[1].branches == first.segments == []

        engine.free.clear()
        engine.asked.clear()
        command = [sys.executable, "-I", "-S", str(program), str(tmp_path)]
        trajectory = await roll_out_program(
            assignment(1), command, facade, Limits(seconds=PATIENCE, attempts=1)
        )
        engine.free.set()
        while not (tmp_path / "said").exists():
            await asyncio.sleep(0.01)
        assert (tmp_path / "said").read_text() == "404"
        assert trajectory.segments == [] and trajectory.tokens == 0

    with_facade(shell_user, run)


def test_requests_at_once_share_the_turns(shell_user):
    """Of three together two are answered, and one that failed is given back."""

    async def run(facade, gateway):
        engine = gateway.clients["engine"]
        engine.free.clear()
        address = facade.open("r", 1, OFF, turns=2)
        async with client_of(address) as client:
            asked = lambda text: asyncio.create_task(client.chat.completions.create(  # noqa: E731
                model="policy", messages=[{"role": "user", "content": text}]
            ))  # fmt: skip
            both = [asked("one"), asked("two")]
            while len(gateway._calls.get("engine", ())) < 2:
                await asyncio.sleep(0.01)
            with pytest.raises(openai.UnprocessableEntityError, match="has had its 2 answers"):
                await asked("three")
            both[0].cancel()
            while len(gateway._calls["engine"]) > 1:
                await asyncio.sleep(0.01)
            engine.free.set()
            await both[1]
            await asked("four")
            with pytest.raises(openai.UnprocessableEntityError):
                await asked("five")
        guest, session = facade.close("r")
        assert guest.answered == sum(len(segment.turns) for segment in session.segments) == 2

    with_facade(shell_user, run)


def marked(path: Path, mark: Path) -> bool:
    try:
        return f"MARK={mark}".encode() in path.read_bytes()
    except OSError:
        return False
