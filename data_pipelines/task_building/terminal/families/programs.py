"""Small command-line programs to a specification; they are tried on inputs that nobody has seen."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families import specifications, trials
from data_pipelines.task_building.terminal.families.text import fill, name_of, phrase
from data_pipelines.task_building.terminal.families.trials import Trial

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
    inputs = sorted({specification.draw(rng) for _ in range(14)}, key=lambda text: (len(text), text))
    shown, *inputs = [(text, specification.answer(text)) for text in inputs]
    call = [path, *specification.arguments]
    tries = [Trial([trials.run(call, output, text=text)]) for text, output in inputs]
    tries += [
        Trial([trials.run(call, "", status=refused, text=text, complains=True)])
        for text in specification.wrong
    ]
    command = " ".join([path, *(f"'{argument}'" for argument in specification.arguments)])
    opening = phrase(
        rng,
        "Please write a small program.",
        "We need a little command-line tool.",
        "Write a program for the command line.",
    )
    instruction = (
        f"{opening} It is to be {path}, executable, in any language that is there (the first line says which "
        f"interpreter runs it), without packages beyond what is installed. It is called as `{command}` and "
        f"reads standard input. {specification.text}\n\n"
        "On wrong input it prints nothing on standard output, one line that says why on standard error, and "
        f"exits with status {refused}; else it exits with status 0. Every line of output ends with a line "
        "feed. For example, the input\n\n"
        f"{_indented(shown[0])}\n\n"
        "gives\n\n"
        f"{_indented(shown[1])}\n\n"
        f"{path} will be tried on other inputs, right and wrong ones."
    )
    solution = fill(
        WRITE,
        path=path,
        program=fill(specification.program, status=refused),
        shown=_quoted(shown[0]),
        arguments=" ".join(_quoted(argument) for argument in specification.arguments),
    )
    return TerminalDraft(
        title=specification.title,
        instruction=instruction,
        solution=solution,
        collect=trials.collect(tries),
        tests=trials.TESTS,
        difficulty="medium",
        expected={"trials": trials.wanted(tries)},
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
