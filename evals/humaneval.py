"""HumanEval: pass@k of Python functions completed from their signature and docstring, run in a sandbox.

A model of some million parameters solves none of the problems, and few of its completions are Python at all
(``parses``). Problems, tests and estimator are those of Chen et al. 2021; all samples are drawn at one
temperature.
"""

import ast
import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.sandbox.interface import SandboxError
from environments.snippets import Runner, modules_of
from evals.policy import Policy, Result, Score
from evals.statistics import pass_at_k
from evals.suite import clustered_share, share
from pipeline.artifacts import digest_of

TEMPERATURE = 0.8
SEED = 20260217
STOPS = (
    "\nclass ",
    "\ndef ",
    "\n#",
    "\nif ",
    "\nprint(",
    "\n@",
    "\nimport ",
    "\nfrom ",
    "\nassert ",
    "\n```",
)
SECONDS = 6  # of a program's own work

# Solution and tests share a process, since the tests are code. What the program says at its end is a word
# drawn for each run: a solution that leaves before its tests, or prints what it likes, does not pass.
_PROGRAM = """
def main(task, say=print):
    word, name, test, code = (task.pop(key) for key in ("word", "name", "test", "code"))
    space = {"__name__": "solution"}
    exec(compile(code, "solution.py", "exec"), space)
    solution = space[name]
    exec(compile(test, "test.py", "exec"), space)
    space["check"](solution)
    say("\\n" + word, flush=True)

main(task)
"""


@dataclass(frozen=True)
class Problem:
    task_id: str
    prompt: str
    canonical_solution: str
    test: str
    entry_point: str


@dataclass(frozen=True)
class HumanEval:
    """Scores: ``pass@1``, ``pass@<samples_per_problem>``, ``parses``, ``failed``: runs without a verdict. A
    completion ends where something follows the function.
    """

    problems: list[Problem]
    samples_per_problem: int
    max_new_tokens: int
    open_runner: Callable[[], Runner] = field(compare=False)  # where the programs run
    name: str = "humaneval"

    def protocol(self) -> dict[str, Any]:
        return {
            "version": 1,
            "problems": digest_of([vars(problem) for problem in self.problems]),
            "samples": self.samples_per_problem,
            "max_new_tokens": self.max_new_tokens,
            "decoding": {"temperature": TEMPERATURE, "seed": SEED, "stops": list(STOPS)},
        }

    def run(self, policy: Policy) -> Result:
        n = self.samples_per_problem
        asked = [problem for problem in self.problems for _ in range(n)]
        texts = policy.complete(
            [problem.prompt for problem in asked], self.max_new_tokens, policy.attentions[0], None,
            TEMPERATURE, SEED,
        )  # fmt: skip
        bodies = [first_part(text) for text in texts]
        verdicts = asyncio.run(judge_all(list(zip(asked, bodies, strict=True)), self.open_runner()))
        attempts = [
            {"task": problem.task_id, "mode": "completion", "reward": verdict}
            for problem, verdict in zip(asked, verdicts, strict=True)
        ]
        return Result(self._scores(asked, bodies, verdicts), [], attempts)

    def _scores(self, asked: list[Problem], bodies: list[str], verdicts: list[bool | None]) -> list[Score]:
        n, scores = self.samples_per_problem, []
        whole = [verdicts[i : i + n] for i in range(0, len(verdicts), n) if None not in verdicts[i : i + n]]
        if whole:
            for k in sorted({1, n}):
                scores.append(share(f"pass@{k}", [pass_at_k(n, sum(v), k) for v in whole]))
        names = [problem.task_id for problem in asked]
        pairs = zip(asked, bodies, strict=True)
        scores.append(clustered_share("parses", [float(parses(p.prompt + b)) for p, b in pairs], names))
        scores.append(clustered_share("failed", [float(verdict is None) for verdict in verdicts], names))
        return scores


def first_part(text: str) -> str:
    """A completion up to what no longer belongs to the function."""
    return text[: min((at for stop in STOPS if (at := text.find(stop)) >= 0), default=len(text))]


async def judge_all(pairs: Sequence[tuple[Problem, str]], runner: Runner) -> list[bool | None]:
    """Whether each completion passes its problem's tests; None where the sandbox failed. The same program
    runs once, and one that is no Python not at all.
    """
    slots = asyncio.Semaphore(os.cpu_count() or 1)

    async def verdict(problem: Problem, body: str) -> bool | None:
        if not parses(problem.prompt + body):
            return False
        async with slots:
            return await judge(problem, body, runner)

    different = dict.fromkeys((problem.task_id, body) for problem, body in pairs)
    problems = {problem.task_id: problem for problem, _ in pairs}
    found = await asyncio.gather(*(verdict(problems[name], body) for name, body in different))
    by_program = dict(zip(different, found, strict=True))
    return [by_program[problem.task_id, body] for problem, body in pairs]


async def judge(problem: Problem, body: str, runner: Runner) -> bool | None:
    code, word = problem.prompt + body, secrets.token_hex(16)
    known = _imported(problem.prompt + problem.canonical_solution) | _imported(problem.test)
    try:
        outcome = await runner.run(
            _PROGRAM, code, SECONDS, name=problem.entry_point, test=problem.test, word=word,
            modules=sorted(known | modules_of(code)),
        )  # fmt: skip
    except SandboxError:
        return None
    return outcome.returncode == 0 and outcome.output.strip().rpartition("\n")[2] == word


def parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _imported(code: str) -> set[str]:
    """Modules that a problem's own text imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
