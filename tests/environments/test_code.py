"""Snippets are judged by what they return, in a limited child process."""

import asyncio
import os
import signal
import sys

import pytest

from environments.code import Code, read_code
from environments.interface import play
from environments.sandbox import process
from environments.sandbox.process import run_python
from tests.waiting import PATIENCE, wait_until

CODE = Code()
TASK = CODE.make_task("expression", 5)
SLEEP = f"{10 * PATIENCE:.0f}.{os.getpid()}"  # seconds, a number of this process's own


def judge(code, task=TASK):
    return asyncio.run(play(CODE, task, [{"role": "assistant", "content": code}]))[1]


def test_another_form_of_the_function_passes():
    right = TASK.truth["code"].removeprefix("def f(x): return ")
    assert judge(f"f = lambda x: {right}").reward == 1.0
    assert judge(f"Here:\n```python\ndef f(x):\n    y = {right}\n    return y\n```\nDone.").reward == 1.0
    assert judge(f"print('hello')\ndef f(x):\n    print(x)\n    return {right}").reward == 1.0


def test_fence():
    assert read_code("a\n```\nb\n```\nc") == "b"
    assert read_code(" b \n") == "b"


@pytest.mark.parametrize(
    "code, reason",
    [
        ("def f(x): return x", "a test fails"),
        ("def f(x): return None", "a test fails"),
        ("def f(x): return object()", "a test fails"),
        ("def f(x): return (", "failed"),
        ("x = 1", "failed"),
        ("def f(): return 1", "failed"),
        ("import sys; sys.exit(0)", "a test fails"),
        ("import os; os._exit(0)", "a test fails"),
        ("print([1, 2, 3]); import os; os._exit(0)", "a test fails"),
        ("def f(x):\n while True: pass", ("failed", "runs too long")),  # 2 s of work may take long
        ("def f(x): return f(x)", "failed"),
        ("def f(x): return [0] * 10**9", "failed"),
        ("import os\nfor _ in range(9): os.kill(os.getpid(), 11)", "failed"),
        ("print('x' * 10**6)\ndef f(x): return x", "failed"),
        (
            "import os\nh = os.open('/dev/shm/snippet', os.O_CREAT | os.O_WRONLY)\n"
            "os.unlink('/dev/shm/snippet')\nos.write(h, b'x')\nf = abs",
            "failed",
        ),
        ("f = lambda x: open(__import__('os').__file__).read()", "failed"),
        ("import socket\nsocket.socket()\ndef f(x): return x", "failed"),
        ("import json, numpy\ndef f(x): return x", "failed"),
        ("def f(x): return '\udc80' + '\0'", "failed"),
        ("x" * 5000, "longer than"),
        ("", "no code"),
    ],
)
def test_wrong_and_hostile_snippets_score_zero(code, reason):
    verdict = judge(code)
    reasons = (reason,) if isinstance(reason, str) else reason
    assert verdict.reward == 0.0 and any(part in verdict.reason for part in reasons), verdict


def test_expected_values_never_enter_the_child(monkeypatch):
    seen = {}

    async def record(program, text, **limits):
        seen.update(program=program, text=text)
        return await run_python(program, text, **limits)

    monkeypatch.setattr("environments.code.run_python", record)
    assert judge(TASK.truth["code"]).reward == 1.0
    assert "outputs" not in seen["program"] + seen["text"]
    assert str(TASK.truth["outputs"])[1:-1] not in seen["text"]


def test_a_sleeping_snippet_is_stopped_with_its_children():
    sleep = f"time.sleep({SLEEP})"
    program = f"import os, time\nif os.fork() == 0:\n    {sleep}\n{sleep}"
    if os.geteuid():
        program = f"import time\n{sleep}"
    outcome = asyncio.run(asyncio.wait_for(run_python(program, "", seconds=0.5), PATIENCE))
    assert outcome.timed_out and outcome.returncode == -9
    # The kernel ends a killed grandchild when it comes to it.
    wait_until(lambda: not _alive_with(sleep), "the end of the grandchild")


@pytest.mark.parametrize(
    "program", ["print('x' * 10**6)", "print('x' * 10**6, flush=True)\nwhile True: pass"]
)
def test_a_flood_of_output_is_cut_and_its_writer_ended(program):
    """Repeated: a paused reader once left the wait for the process without an end, one time in three."""

    async def flood():
        return [await asyncio.wait_for(run_python(program, "x" * 10**6), PATIENCE) for _ in range(10)]

    for outcome in asyncio.run(flood()):
        assert len(outcome.output) == process.MAX_OUTPUT_BYTES and not outcome.timed_out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may fork inside the limits")
def test_an_inherited_pipe_in_a_session_of_its_own_does_not_hold_us():
    program = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep({SLEEP})\n"
    outcome = asyncio.run(asyncio.wait_for(run_python(program, "", seconds=0.5), PATIENCE))
    for left in _alive_with(SLEEP):  # it is out of the sandbox's reach
        os.kill(int(left), signal.SIGKILL)
    assert outcome.timed_out


def _alive_with(text):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = open(f"/proc/{pid}/cmdline", "rb").read().decode(errors="replace")
            state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if text in command and "-I" in command and state != "Z":
            found.append(pid)
    return found


def test_a_sandbox_that_does_not_start_gives_no_reward(monkeypatch):
    monkeypatch.setattr(process.sys, "executable", "/nonexistent/python")
    verdict = judge(TASK.truth["code"])
    assert verdict.reward is None and "cannot start" in verdict.reason


def test_many_at_once_are_all_judged():
    tasks = [CODE.make_task(family, seed) for family in CODE.families for seed in range(10)]

    async def run():
        return await asyncio.gather(*(play(CODE, task, CODE.oracle(task, "off")) for task in tasks))

    assert [verdict.reward for _, verdict in asyncio.run(run())] == [1.0] * len(tasks)


def test_a_fix_is_told_apart_by_the_value_shown():
    for seed in range(100):
        prompt = CODE.make_task("fix", seed).messages[0]["content"]
        value = int(prompt.split("=")[1].split(":")[0])
        x = int(prompt[prompt.index("(") + 1 : prompt.index(")")])
        body = prompt.rpartition("return ")[2]
        sign = body[1]
        fits = [other for other in "+-*" if eval(body.replace(sign, other), {"x": x}) == value]
        assert len(fits) == 1 and fits[0] != sign


def test_interpreter_is_ours():
    outcome = asyncio.run(run_python("print(sys.flags.isolated, sys.flags.no_site, sys.version)", ""))
    assert outcome.output.strip() == f"1 1 {sys.version}".strip() and outcome.returncode == 0
