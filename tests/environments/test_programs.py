"""Programs with hidden tests: right ones pass, cheats and the references of near tasks score 0."""

import asyncio
import json
import random

import pytest

from environments import snippets
from environments.episode import answer
from environments.interface import MODES, Task, play
from environments.programs.environment import Programs, same
from environments.sandbox import interface
from environments.sandbox.interface import Backend, SandboxError
from pipeline.errors import UserError
from tests.sandboxes import backend_or_skip, image_cache

PROGRAMS = Programs()
FAMILIES = PROGRAMS.families + PROGRAMS.evaluation_only


def tasks(family, count):
    first = random.Random(family).randrange(10**6)
    return [PROGRAMS.make_task(family, first + n, family in PROGRAMS.evaluation_only) for n in range(count)]


def verdicts(task, solutions):
    return asyncio.run(PROGRAMS.judge(task, solutions))


def reward(task, code):
    return verdicts(task, [code])[0].reward


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_one_nothing_zero(family):
    for task, mode in zip(tasks(family, 3), MODES, strict=True):
        messages = PROGRAMS.oracle(task, mode)
        assert asyncio.run(play(PROGRAMS, task, messages))[1].reward == 1.0
        assert bool(messages[0].get("reasoning_content")) == (mode != "off")
        for nothing in ([], [answer(None, "")], [answer(None, "I cannot.")]):
            assert asyncio.run(play(PROGRAMS, task, nothing))[1].reward == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_repeat_are_plain_data_and_differ(family):
    found = tasks(family, 100)
    assert [PROGRAMS.make_task(family, task.seed, task.heldout) for task in found[:5]] == found[:5]
    stored = Task.from_record(json.loads(json.dumps(found[0].to_record())))
    assert reward(stored, stored.truth["code"]) == 1.0
    assert len({task.messages[0]["content"] for task in found}) > 97
    for task in found:
        assert len({repr(output) for output in task.truth["outputs"]}) >= 3  # no constant passes
        assert len(task.truth["inputs"]) >= 5
    if family in PROGRAMS.evaluation_only:
        with pytest.raises(UserError, match="kept for evaluation"):
            PROGRAMS.make_task(family, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_references_of_other_tasks_fail(family):
    """The nearest wrong programs there are: the same family with other parameters."""
    first, *others = tasks(family, 6)
    named = [
        t for t in others if t.truth["name"] == first.truth["name"] and t.truth["code"] != first.truth["code"]
    ]
    results = verdicts(first, [t.truth["code"] for t in named])
    assert sum(v.reward for v in results) <= len(named) / 4


def _task():
    return next(task for task in tasks("lists", 30) if "return sum(x)" in task.truth["code"])


CHEATS = {
    "exit": "import sys\ndef f(*a): sys.exit(0)",
    "os exit": "import os\nos._exit(0)",
    "exit at once": "raise SystemExit(0)",
    "always equal": "class E(int):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return "
    "False\n    __hash__ = int.__hash__\ndef f(*a): return E(1)",
    "always equal text": "class E(str):\n    def __eq__(s, o): return True\n    def __repr__(s): "
    "return '1'\ndef f(*a): return E('1')",
    "list that is equal": "class L(list):\n    def __eq__(s, o): return True\ndef f(*a): return L([1])",
    "printed": "print('[1, 2, 3]')\nimport os\nos._exit(0)",
    "printed passes": "print('all tests pass\\n[True]')\nraise SystemExit",
    "patched": "import builtins\nbuiltins.print = lambda *a, **k: None\nbuiltins.ascii = lambda x: "
    "'[1]'\ndef f(*a): return 1",
    "patched type": "import builtins\nbuiltins.type = lambda x: int\nbuiltins.isinstance = lambda *a: "
    "True\ndef f(*a): return object()",
    "patched map": "import builtins\nbuiltins.all = lambda x: True\ndef f(*a): return 0",
    "repository": "import sys\nsys.path.insert(0, {root!r})\nfrom environments.program_families import "
    "FAMILIES\ndef f(x): return 1",
    "files": "def f(x): return open('/proc/self/environ').read()",
    "frames": "import sys\ndef f(x):\n    g = sys._getframe()\n    while g:\n        for v in "
    "list(g.f_locals.values()) + list(g.f_globals.values()):\n            if isinstance(v, "
    "dict) and 'outputs' in v: return v['outputs']\n        g = g.f_back\n    return None",
    "task": "def f(x):\n    import __main__\n    return __main__.task.get('outputs')",
    "results": "import sys\ndef f(x):\n    r = sys._getframe(1).f_locals['results']\n    r.extend([0] "
    "* 20)\n    return 0",
    "endless": "def f(x):\n    while True: pass",
    "memory": "def f(x): return [0] * 10**10",
    "recursion": "def f(x): return f(x)",
    "deep": "def f(x):\n    r = []\n    for _ in range(10**5): r = [r]\n    return r",
    "flood": "def f(x): print('x' * 10**7); return 1",
    "big": "def f(x): return 10**5000",
    "syntax": "def f(x) return 1",
    "binary": "\x00\x01",
    "surrogate": "def f(x): return '\ud800'",
    "name": "g = 1",
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_score_zero(name):
    from pathlib import Path

    root = str(Path(__file__).parents[2])
    assert reward(_task(), CHEATS[name].replace("{root!r}", repr(root))) == 0.0


def test_hard_coded_examples_score_zero():
    task = _task()
    shown = dict(
        line[2:].split(") == ") for line in task.messages[0]["content"].splitlines() if line.startswith("f(")
    )
    table = "{" + ", ".join(f"{json.dumps(given)!r}: {value}" for given, value in shown.items()) + "}"
    assert reward(task, f"import json\ndef f(x): return {table}.get(json.dumps(repr(x)), 0)") == 0.0


def test_other_right_programs_pass_and_talk():
    task = _task()
    code = task.truth["code"]
    assert reward(task, f"Here it is.\n```python\n{code}\n```\nIt runs in linear time.") == 1.0
    assert reward(task, f"{code}\nprint(f([1, 2, 3]))\nprint('done')") == 1.0
    assert reward(task, code.replace("def f(x):", "import math, json\ndef f(x):\n    print(x)")) == 1.0
    assert reward(task, code + "\n#" + "x" * 10_000) == 0.0


def test_same_looks_at_types():
    assert same([1, [2, "a"], {"k": None}], [1, [2, "a"], {"k": None}]) and same((1, 2), [1, 2])
    for got, wanted in (
        (True, 1),
        (1, True),
        (1.0, 1),
        ("1", 1),
        ([1], [1, 2]),
        ({"a": 1}, {"a": 2}),
        (None, 0),
        ({}, []),
    ):
        assert not same(got, wanted)


def test_many_solutions_of_one_task():
    task = _task()
    rewards = [v.reward for v in verdicts(task, [task.truth["code"], "def f(x): return 0"] * 3)]
    assert rewards == [1.0, 0.0] * 3
    assert [v.reward for v in verdicts(task, [task.truth["code"], "def f(x): return 0"] * 3)] == rewards


def test_a_failing_sandbox_gives_no_reward(monkeypatch):
    async def broken(*_, **__):
        raise SandboxError("no process can be started")

    monkeypatch.setattr(snippets, "run_python", broken)
    assert [v.reward for v in verdicts(_task(), ["def f(x): return 0", ""])] == [None, 0.0]


class NoKernel(Backend):
    """A backend that builds nothing, as where the machine forbids namespaces."""

    name = "none"

    async def build(self, folder):
        raise interface.SandboxError("namespaces are forbidden here")

    async def start(self, image, limits):
        raise AssertionError("nothing was built")


def test_a_backend_that_fails_gives_no_reward():
    programs, task = Programs(NoKernel()), _task()
    for solution in (task.truth["code"], "def f(x): return 0"):
        (verdict,) = asyncio.run(programs.judge(task, [solution]))
        assert (verdict.reward, verdict.reason) == (None, "namespaces are forbidden here")


def test_in_a_real_sandbox(tmp_path_factory):
    inside, task = Programs(backend_or_skip(image_cache(tmp_path_factory))), _task()
    solutions = [
        task.truth["code"],
        "def f(x): return 0",
        CHEATS["os exit"],
        CHEATS["always equal"],
        CHEATS["files"],
    ]
    assert [v.reward for v in asyncio.run(inside.judge(task, solutions))] == [1.0, 0.0, 0.0, 0.0, 0.0]
