"""Programming problems with hidden tests: a statement, two examples, a function or a class to write.

The sandbox gets the solution and the hidden inputs; the expected values stay here, so a program can neither
read nor forge its score. Values are compared by exact type: an object that claims to equal everything is
never even read.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from environments.code import read_code
from environments.episode import answer
from environments.interface import Draft, Environment, Episode, Message, Mode, Step, Task, Verdict
from environments.programs import algorithms, objects, structures, transformations, unseen
from environments.programs.problem import Program
from environments.sandbox.interface import Backend, SandboxError
from environments.snippets import Runner, last_value, runner

TRAINED: dict[str, Callable[[random.Random], Program]] = {
    "strings": transformations.strings, "lists": transformations.lists, "records": transformations.records,
    "recursion": structures.recursion, "parsing": structures.parsing, "algorithms": algorithms.algorithms,
    "classes": objects.classes,
}  # fmt: skip
UNSEEN = {"grid": unseen.grid, "formatting": unseen.formatting}

MAX_CODE = 10_000  # characters
EXAMPLES = 2
DRAWS = 20  # tries to find inputs whose outputs differ

# ``plain`` keeps exact built-in values and nothing that merely looks like one.
_PROGRAM = """
def plain(value, kinds=(int, str, bool, float, type(None)), boxes=(list, tuple), kind=type, deep=0):
    if kind(value) in kinds:
        return value
    if kind(value) in boxes and deep < 20:
        return kind(value)([plain(part, deep=deep + 1) for part in value])
    if kind(value) is dict and deep < 20:
        return {plain(key, deep=deep + 1): plain(part, deep=deep + 1) for key, part in value.items()}
    raise TypeError("no plain value")

def call_all(space, name, inputs, results):
    for arguments in inputs:
        results.append(plain(space[name](*arguments)))

def use_all(space, name, inputs, results):
    for first, *calls in inputs:
        made = space[name](*first)
        results.append([plain(getattr(made, method)(*arguments)) for method, *arguments in calls])

def main(say=print, show=ascii):
    space, results = {"__name__": "solution"}, []
    exec(compile(task["code"], "solution.py", "exec"), space)
    (use_all if task["is_class"] else call_all)(space, task["name"], task["inputs"], results)
    say("\\n" + show(results), flush=True)

main()
"""


class ProgramEpisode(Episode):
    """One message with the solution; ``truth`` holds ``name``, ``is_class``, ``inputs`` and ``outputs``."""

    def __init__(self, runner: Runner):
        self._runner = runner

    async def reset(self, task: Task) -> list[Message]:
        self._task, self._code = task, None
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self._code is not None:
            raise RuntimeError("the episode is over: reset it before another step")
        content = message.get("content")
        self._code = read_code(content) if isinstance(content, str) and not message.get("tool_calls") else ""
        return Step(done=True)

    async def verify(self) -> Verdict:
        return await judge(self._runner, self._task, self._code or "")


async def judge(runner: Runner, task: Task, code: str) -> Verdict:
    """Run a solution on the hidden inputs and compare what it returns with the expected values."""
    if not code.strip():
        return Verdict(0.0, "there is no code")
    if len(code) > MAX_CODE:
        return Verdict(0.0, f"the code is longer than {MAX_CODE} characters")
    truth = task.truth
    try:
        outcome = await runner.run(
            _PROGRAM, code, name=truth["name"], is_class=truth["is_class"], inputs=truth["inputs"]
        )
    except SandboxError as error:
        return Verdict(None, str(error))
    if outcome.timed_out:
        return Verdict(0.0, "the code runs too long")
    if outcome.returncode:
        return Verdict(0.0, f"the code failed (exit status {outcome.returncode})")
    results = last_value(outcome.output)
    if not isinstance(results, list) or len(results) != len(truth["outputs"]):
        return Verdict(0.0, "the code did not come to its end")
    passed = sum(same(got, wanted) for got, wanted in zip(results, truth["outputs"], strict=True))
    return Verdict(float(passed == len(results)), f"{passed} of {len(results)} tests pass")


def same(got: Any, wanted: Any) -> bool:
    """Equal with equal types all the way down, so that True is not 1; lists stand for tuples as in JSON."""
    if isinstance(wanted, list | tuple):
        return isinstance(got, list | tuple) and len(got) == len(wanted) and all(map(same, got, wanted))
    if isinstance(wanted, dict):
        return (
            isinstance(got, dict) and set(got) == set(wanted) and all(same(got[k], wanted[k]) for k in wanted)
        )
    return type(got) is type(wanted) and got == wanted


class Programs(Environment):
    """``backend`` is the sandbox that solutions run in; without one it is a limited child process."""

    name = "programs"
    families = tuple(TRAINED)
    evaluation_only = tuple(UNSEEN)

    def __init__(self, backend: Backend | None = None):
        self._runner = runner(backend)

    def draw(self, family: str, rng: random.Random) -> Draft:
        for _ in range(DRAWS):
            problem = (TRAINED | UNSEEN)[family](rng)
            space: dict = {}
            exec(compile(problem.code, family, "exec"), space)  # our own text: the reference solution
            run = _use if problem.is_class else _call
            # The reference gets copies: it may change what it is given.
            copies = json.loads(json.dumps(problem.inputs))
            outputs = [run(space[problem.name], arguments) for arguments in copies]
            if len({repr(output) for output in outputs[EXAMPLES:]}) >= 3:
                break
        shown = "\n".join(
            _example(problem, *pair) for pair in zip(problem.inputs[:EXAMPLES], outputs, strict=False)
        )
        kind = "class" if problem.is_class else "function"
        prompt = (
            f"{problem.statement}\n\nExamples:\n{shown}\n\nAnswer with the {kind} in Python, nothing else."
        )
        truth = {
            "name": problem.name,
            "is_class": problem.is_class,
            "code": problem.code,
            "steps": problem.steps,
            "inputs": problem.inputs[EXAMPLES:],
            "outputs": outputs[EXAMPLES:],
        }
        return Draft(({"role": "user", "content": prompt},), truth, problem.difficulty)

    def episode(self) -> Episode:
        return ProgramEpisode(self._runner)

    async def judge(self, task: Task, solutions: Sequence[str]) -> list[Verdict]:
        """The verdicts of many solutions of one task, as pass@k needs them; run at once."""
        return list(await asyncio.gather(*(judge(self._runner, task, read_code(text)) for text in solutions)))

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        steps = None if mode == "off" else task.truth["steps"]
        return [answer(steps, f"```python\n{task.truth['code']}\n```")]


def _call(function: Any, arguments: list) -> Any:
    return function(*arguments)


def _use(made: Any, script: list) -> list:
    first, *calls = script
    thing = made(*first)
    return [getattr(thing, method)(*arguments) for method, *arguments in calls]


def _example(problem: Program, arguments: list, output: Any) -> str:
    if not problem.is_class:
        return f"{problem.name}({', '.join(map(repr, arguments))}) == {output!r}"
    first, *calls = arguments
    lines = [f"x = {problem.name}({', '.join(map(repr, first))})"]
    for (method, *given), value in zip(calls, output, strict=True):
        lines.append(f"x.{method}({', '.join(map(repr, given))}) == {value!r}")
    return "; ".join(lines)
