"""The Python tool: programs run apart, see no answer, reach no files; a broken sandbox is no failure."""

import asyncio
import json
import random

import pytest

from environments import snippets
from environments.episode import answer, call_message
from environments.interface import MODES, Task, play
from environments.python_tool import MAX_OUTPUT, PythonTool
from environments.sandbox.interface import SandboxError
from pipeline.errors import UserError
from tests.sandboxes import backend_or_skip, image_cache

TOOL = PythonTool()
FAMILIES = TOOL.families + TOOL.evaluation_only


def tasks(family, count):
    first = random.Random(family).randrange(10**6)
    return [TOOL.make_task(family, first + seed, family in TOOL.evaluation_only) for seed in range(count)]


def outcome(task, messages, environment=TOOL):
    return asyncio.run(play(environment, task, messages))


def printed(code, environment=TOOL):
    messages, _ = outcome(tasks("coins", 1)[0], [call_message(None, "python", code=code)], environment)
    return messages[-1]["content"]


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_one_nothing_zero_close_zero(family):
    for task, mode in zip(tasks(family, 3), MODES, strict=True):
        messages, verdict = outcome(task, TOOL.oracle(task, mode))
        assert verdict.reward == 1.0
        assert messages[2]["content"] == task.truth["answer"]  # the program finds it, the generator agrees
        assert all(bool(m.get("reasoning_content")) == (mode != "off") for m in TOOL.oracle(task, mode))
        right = int(task.truth["answer"])
        for wrong in (
            "",
            "I do not know",
            str(right + 1),
            f"{right + 1} or {right}",
            f"{right}\n{right + 1}",
            str(-right - 1),
        ):
            assert outcome(task, [answer(None, wrong)])[1].reward == 0.0
        assert outcome(task, [answer(None, f"We get\n\n\\boxed{{{right}}}")])[1].reward == 1.0
        assert outcome(task, [])[1].reward == 0.0
        assert outcome(task, TOOL.oracle(task, mode)[:1])[1].reward == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_repeat_are_plain_data_and_differ(family):
    found = tasks(family, 100)
    assert [TOOL.make_task(family, task.seed, task.heldout) for task in found[:5]] == found[:5]
    assert Task.from_record(json.loads(json.dumps(found[0].to_record()))) == found[0]
    assert len({task.messages[0]["content"] for task in found}) > 97
    if family in TOOL.evaluation_only:
        with pytest.raises(UserError, match="kept for evaluation"):
            TOOL.make_task(family, 1)


def test_each_call_is_a_program_of_its_own():
    assert printed("x = 5\nprint(x)") == "5"
    task = tasks("coins", 1)[0]
    calls = [call_message(None, "python", code=code) for code in ("x = 5", "print(x)")]
    messages, _ = outcome(task, calls)
    assert messages[2]["content"] == "(nothing was printed)"
    assert messages[4]["content"] == "NameError in line 1: name 'x' is not defined"


@pytest.mark.parametrize(
    "code, seen",
    [
        ("print(open('/etc/passwd').read())", "OSError in line 1: [Errno 24] Too many open files"),
        ("import socket", "OSError|ModuleNotFoundError|ImportError"),
        ("import os\nprint(os.listdir('/'))", "Too many open files"),
        ("import subprocess\nsubprocess.run(['ls'])", "Error"),
        ("import environments.python_tool", "Error"),
        ("while True: pass", "was ended"),
        ("x = 'a' * 10**10", "MemoryError"),
        ("print('a' * 10**6)", "..."),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("def f(): f()\nf()", "RecursionError"),
        ("print(", "SyntaxError"),
        ("import math, itertools, collections, re\nprint(math.comb(5, 2))", "10"),
        ("from fractions import Fraction\nprint(Fraction(1, 3))", "1/3"),
        ("import numpy", "Error"),
    ],
)
def test_what_a_program_sees(code, seen):
    output = printed(code)
    assert any(part in output for part in seen.split("|")), output
    assert len(output) < MAX_OUTPUT + 100


def test_limits_on_calls():
    task = tasks("coins", 1)[0]
    many = [call_message(None, "python", code="print(1)")] * 20
    messages, verdict = outcome(task, many)
    assert "more than 6" in verdict.reason and verdict.reward == 0.0 and len(messages) < 20
    long = call_message(None, "python", code="#" * 9000)
    assert "longer than 8000" in outcome(task, [long])[0][-1]["content"]
    for call in (
        {"function": {"name": "bash", "arguments": {"code": "1"}}},
        {"function": {"name": "python", "arguments": "{"}},
        {"function": {"name": "python", "arguments": {"code": 3}}},
        7,
    ):
        assert outcome(task, [{"role": "assistant", "content": "", "tool_calls": [call]}])[1].reward == 0.0


def test_a_failing_sandbox_gives_no_reward(monkeypatch):
    async def broken(*_, **__):
        raise SandboxError("no process can be started")

    monkeypatch.setattr(snippets, "run_python", broken)
    task = tasks("coins", 1)[0]
    _, verdict = outcome(task, TOOL.oracle(task, "off"))
    assert (verdict.reward, verdict.reason) == (None, "no process can be started")


def test_in_a_real_sandbox(tmp_path_factory):
    inside = PythonTool(backend_or_skip(image_cache(tmp_path_factory)))
    for family in FAMILIES[:4]:
        task = tasks(family, 1)[0]
        assert outcome(task, inside.oracle(task, "off"), inside)[1].reward == 1.0
    assert "Too many open files" in printed("print(open('/etc/passwd').read())", inside)
