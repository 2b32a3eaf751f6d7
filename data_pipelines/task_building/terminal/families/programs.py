"""Small command-line programs to a specification; they are tried on inputs that nobody has seen."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import RUN, fill, name_of, phrase
from data_pipelines.task_building.terminal.families import specifications

TESTS = (
    RUN
    + """

def check(case):
    status, output, complaints = run(EXPECTED["path"], *case["arguments"], stdin=case["input"], cwd="/tmp")
    assert status == case["status"], f"{case}: status {status}, {complaints}"
    assert output == case["output"], f"{case}: {output!r}"
    if status:
        assert complaints.strip(), f"{case}: no complaint on standard error"


def test_right_inputs():
    for case in EXPECTED["cases"]:
        check(case)


def test_wrong_inputs():
    for case in EXPECTED["wrong"]:
        check(case)
"""
)
WRITE = """
# The program, with its rules in the order in which the specification gives them.
mkdir -p "$(dirname <<path>>)"
cat > <<path>> <<'END'
#!/usr/bin/env python3
<<program>>END
chmod 755 <<path>>

# The example of the specification.
printf '%s' <<shown>> | <<path>> <<arguments>>
"""


@dataclass(frozen=True)
class Specification:
    """A kind of program with its parameters drawn."""

    title: str
    text: str  # what it does; the path is put before it
    program: str  # Python source of a solution
    arguments: list[str]
    answer: Callable[[str], str | None]  # another implementation; None: the input is wrong
    draw: Callable[[random.Random], str]  # an input
    wrong: list[str]  # inputs that must be refused


def write_program(rng: random.Random) -> TerminalDraft:
    """One of ten kinds, with an exit status of its own for wrong input."""
    kind = rng.choice(specifications.KINDS)
    specification = Specification(**kind(rng))
    path, refused = f"/app/bin/{name_of(rng)}", rng.choice([1, 2, 3, 4, 65])
    inputs = {specification.draw(rng) for _ in range(14)}
    cases = [_case(specification, text, 0) for text in sorted(inputs)]
    shown, *cases = sorted(cases, key=lambda case: len(case["input"]))
    wrong = [
        {"arguments": specification.arguments, "input": text, "output": "", "status": refused}
        for text in specification.wrong
    ]
    command = " ".join([path, *(f"'{argument}'" for argument in specification.arguments)])
    instruction = (
        f"{phrase(rng, 'Please write a small program.', 'We need a little command-line tool.', 'Write a program for the command line.')} It is to be "
        f"{path}, executable, in any language that is there (the first line says which interpreter runs it), without packages beyond what is installed. "
        f"It is called as `{command}` and reads standard input. {specification.text}\n\n"
        f"On wrong input it prints nothing on standard output, one line that says why on standard error, and exits with status {refused}; else it exits with status 0. Every line of "
        "output ends with a line feed. For example, the input\n\n"
        f"{_indented(shown['input'])}\n\ngives\n\n{_indented(shown['output'])}\n\n"
        f"{path} will be tried on other inputs, right and wrong ones."
    )
    solution = fill(
        WRITE, path=path, program=fill(specification.program, status=refused), shown=_quoted(shown["input"]),
        arguments=" ".join(_quoted(argument) for argument in specification.arguments),
    )  # fmt: skip
    return TerminalDraft(
        title=specification.title, instruction=instruction, solution=solution, tests=TESTS, difficulty="medium",
        expected={"path": path, "cases": cases, "wrong": wrong},
    )  # fmt: skip


def _case(specification: Specification, text: str, status: int) -> dict:
    return {
        "arguments": specification.arguments,
        "input": text,
        "output": specification.answer(text),
        "status": status,
    }


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
