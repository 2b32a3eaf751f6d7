"""Tiny Python functions, judged by running them on hidden inputs in a child process.

The child is told the inputs only and can open no file and no socket; the expected values stay here, so a
snippet cannot read or forge its score.
"""

import ast
import operator
import random
import re
from typing import Any

from environments.episode import answer
from environments.interface import Draft, Environment, Episode, Message, Mode, Step, Task, Verdict
from environments.sandbox.interface import SandboxError
from environments.sandbox.process import run_python

OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul}
LIST_FUNCTIONS = {"sum": "sum", "largest": "max", "smallest": "min", "length": "len"}
MAX_CHARACTERS = 4000

# Without the json module, whose import would double the time of a run.
_RUNNER = """
import resource
task = eval(sys.stdin.read())
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
space = {}
exec(task["code"], space)
results = []
for arguments in task["inputs"]:
    value = space["f"](*arguments)
    results.append(value if type(value) in (int, str, bool, list) else None)
print("\\n" + repr(results))
"""


class CodeEpisode(Episode):
    """One message with a function ``f``; ``truth`` holds ``inputs`` (argument lists) and ``outputs``."""

    async def reset(self, task: Task) -> list[Message]:
        self._truth, self._code = task.truth, None
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self._code is not None:
            raise RuntimeError("the episode is over: reset it before another step")
        content = message.get("content")
        self._code = read_code(content) if isinstance(content, str) else ""
        return Step(done=True)

    async def verify(self) -> Verdict:
        if not self._code:
            return Verdict(0.0, "there is no code")
        if len(self._code) > MAX_CHARACTERS:
            return Verdict(0.0, f"the code is longer than {MAX_CHARACTERS} characters")
        try:
            outcome = await run_python(_RUNNER, ascii({"code": self._code, "inputs": self._truth["inputs"]}))
        except SandboxError as error:
            return Verdict(None, str(error))
        if outcome.timed_out:
            return Verdict(0.0, "the code runs too long")
        if outcome.returncode:
            return Verdict(0.0, f"the code failed (exit status {outcome.returncode})")
        right = _last_value(outcome.output) == self._truth["outputs"]
        return Verdict(float(right), "all tests pass" if right else "a test fails")


def read_code(content: str) -> str:
    """The code of an answer: inside its Markdown fence where it has one, else all of it."""
    fence = re.search(r"```(?:python)?\n(.*?)```", content, re.DOTALL)
    return (fence[1] if fence else content).strip()


def _last_value(output: str) -> Any:
    """The Python literal on the last line, None where there is none."""
    try:
        return ast.literal_eval(output.strip().rpartition("\n")[2])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _draft(prompt: str, steps: str, body: str, parameter: str, inputs: list, outputs: list) -> Draft:
    truth = {
        "steps": steps,
        "code": f"def f({parameter}): return {body}",
        "inputs": [[value] for value in inputs],
        "outputs": outputs,
    }
    return Draft(({"role": "user", "content": prompt},), truth, 2)


def _expression(rng: random.Random) -> Draft:
    """``f x plus 3 times 2`` is read from left to right: ``(x+3)*2``."""
    (first, a), (second, b) = ((rng.choice(list(OPERATORS)), rng.randint(2, 30)) for _ in range(2))
    inner = f"x{OPERATORS[first]}{a}"
    body = f"({inner}){OPERATORS[second]}{b}"
    inputs = [0, 1, *rng.sample(range(-50, 50), 4)]
    outputs = [APPLY[OPERATORS[second]](APPLY[OPERATORS[first]](x, a), b) for x in inputs]
    return _draft(f"f x {first} {a} {second} {b}", f"{inner} {body}", body, "x", inputs, outputs)


def _list(rng: random.Random) -> Draft:
    """``f largest plus 3`` of a list."""
    word, sign, number = rng.choice(list(LIST_FUNCTIONS)), rng.choice(list(OPERATORS)), rng.randint(2, 99)
    inner = f"{LIST_FUNCTIONS[word]}(x)"
    body = f"{inner}{OPERATORS[sign]}{number}"
    inputs = [rng.sample(range(-50, 50), rng.randint(2, 5)) for _ in range(5)]
    function = {"sum": sum, "max": max, "min": min, "len": len}[LIST_FUNCTIONS[word]]
    outputs = [APPLY[OPERATORS[sign]](function(x), number) for x in inputs]
    return _draft(f"f {word} {sign} {number}", f"{inner} {body}", body, "x", inputs, outputs)


def _fix(rng: random.Random) -> Draft:
    """A function with the wrong sign and one value that shows the right one."""
    while True:
        x, number = rng.randint(2, 9), rng.randint(2, 30)
        values = {sign: apply(x, number) for sign, apply in APPLY.items()}
        if len(set(values.values())) == len(values):
            break
    right, wrong = rng.sample(list(APPLY), 2)
    prompt = f"fix f({x})={values[right]}: def f(x): return x{wrong}{number}"
    inputs = [0, 1, *rng.sample(range(-50, 50), 4)]
    outputs = [APPLY[right](value, number) for value in inputs]
    return _draft(prompt, f"{x}{right}{number}={values[right]}", f"x{right}{number}", "x", inputs, outputs)


class Code(Environment):
    name = "code"
    families = ("expression", "list", "fix")
    _draws = {"expression": _expression, "list": _list, "fix": _fix}

    def draw(self, family: str, rng: random.Random) -> Draft:
        return self._draws[family](rng)

    def episode(self) -> Episode:
        return CodeEpisode()

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        return [answer(None if mode == "off" else task.truth["steps"], task.truth["code"])]
