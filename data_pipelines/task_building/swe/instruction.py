"""What the agent is asked: the release's own words where it has them, and what the failing tests check.

It tells what must hold, never how: no line that the fix adds may stand in it, except where a test or the
release's own note says the same.
"""

import re

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe.project import Project
from data_pipelines.task_building.swe.tests_text import TestFunction
from environments.swe.patches import added_lines

SHORTEST_LINE = 16  # characters of an added line that are more than an accident
LONGEST_NOTE = 4000

REVERSAL = """\
# {project}: {count} that used to work {verb} broken

In `{workdir}` lies the Python project {project} (after {version}). A change has damaged it: what the tests
below check no longer holds. Find the cause in `{package}` and repair it.
"""
RELEASE = """\
# {project}: what the next release repairs

In `{workdir}` lies the Python project {project} {version}. These are the notes on what is to be changed next:

{note}

Make the changes in `{package}` so that what the tests below check holds. Points of the notes that no test
below is about are optional.
"""
DEBIAN = """\
# {project}: {title}

In `{workdir}` lies the Python project {project} {version}. A change is wanted; its maintainers say of it:

{issue}

Make the change in `{package}` so that what the tests below check holds.
"""
END = """\
These tests and all others of the project must pass in the end; the project's test files are put back before
they run, so changes there have no effect. `{run}` runs the tests that are there now.
There is no network, and nothing can be installed.
"""


def instruction(text: str, project: Project, functions: list[TestFunction], fix: str, **values: str) -> str:
    """The whole instruction. Raises ``Rejected`` where it would give the fix away."""
    count = f"{len(functions)} things" if len(functions) > 1 else "something"
    head = text.format(
        project=project.name, workdir=project.workdir, package=project.package, count=count,
        verb="are" if len(functions) > 1 else "is", **values,
    )  # fmt: skip
    checks = "\n".join(map(_check, functions))
    whole = f"{head}\n## What must hold\n\n{checks}\n{END.format(run=_command(project))}"
    told = _squeeze("\n".join([*(function.source for function in functions), values.get("note", "")]))
    for line in sorted({_squeeze(line) for lines in added_lines(fix).values() for line in lines}):
        if len(line) >= SHORTEST_LINE and line in _squeeze(whole) and line not in told:
            raise Rejected("the instruction would give the fix")
    return whole


def _command(project: Project) -> str:
    path = "" if project.paths == (".",) else f"PYTHONPATH={':'.join(project.paths)} "
    return f"{path}python3 -m pytest {' '.join(project.tests)}"


def _check(function: TestFunction) -> str:
    meaning = f": {function.docstring}" if function.docstring else ""
    return f"- `{function.name}` in `{function.file}`{meaning}\n\n```python\n{function.source}\n```\n"


def _squeeze(text: str) -> str:
    return "".join(text.split())


def release_note(changelog: str, version: str) -> str | None:
    """The section of one version in a changelog (Markdown, reStructuredText, plain lists); None without it.

    A section begins with a line that names the version and ends before the next line of that form.
    """
    lines = changelog.splitlines()
    before = r"(?:#+ +|[^\w\n]{0,3})(?:(?:Version|Release) +)?\[?v?"
    after = r"\b(?!\.\d).{0,60}"
    heading = re.compile(before + re.escape(version) + r"(?:\.0)*" + after, re.I)
    any_heading = re.compile(before + r"\d+(?:\.\d+)+" + after, re.I)
    starts = [number for number, line in enumerate(lines) if heading.fullmatch(line)]
    if not starts:
        return None
    note = []
    for line in lines[starts[0] + 1 :]:
        if any_heading.fullmatch(line):
            break
        note.append(line)
    body = "\n".join(note).strip("\n")
    body = re.sub(r"\A[-=~*^+#]{3,}\n", "", body).strip("\n")
    body = re.sub(r"\n\.\. _.*\Z", "", body, flags=re.S).strip("\n")
    return body[:LONGEST_NOTE] if re.search(r"\w{3}", body) else None
