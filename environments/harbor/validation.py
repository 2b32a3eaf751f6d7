"""Is a task sound? Built, tried by agents whose result is known, and read against the rubric.

    report = await validate(folder, backend)
    report.sound, report.reason, report.to_json()

Tried are an agent that does nothing (must score 0), the task's own solution (must score 1), both as often as
``repeats`` says with the same result each time; an agent that does none of the work but plants every forgery
that needs no knowledge of the task (must score 0), one that removes the work (must leave a reward), and one
that puts a forger in place of each program of the solution (should score 0; where it does not, the tests run
what was delivered with rights over the rewards, which is said but rejects nothing).
"""

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from environments.harbor import rewards
from environments.harbor.forgery import FORGERY, forgers, programs_in
from environments.harbor.rubric import Line, rubric
from environments.harbor.solution import solution_command
from environments.harbor.task import HarborTask, load_task
from environments.harbor.verifier import artifacts, make_folders, verify, work_directory
from environments.sandbox.interface import Backend, Image, ImageError, Sandbox, SandboxError
from pipeline.errors import UserError

SECRET_PLACES = ("/tests", "/solution")


@dataclass(frozen=True)
class Run:
    """One attempt by an agent whose result is known."""

    agent: str
    reward: float | None
    outcome: str
    reason: str
    seconds: float
    output: str  # the end of what the tests printed


@dataclass(frozen=True)
class _Attempt:
    run: Run
    places: list[str]  # of SECRET_PLACES, those that were there before it
    programs: list[str]  # that it wrote among the artifacts


@dataclass(frozen=True)
class Report:
    name: str
    folder: str
    digest: str
    backend: str
    sound: bool
    reason: str  # why it is rejected, one line; "" when it is sound
    lines: list[Line] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1)


async def validate(folder: Path, backend: Backend, repeats: int = 3) -> Report:
    """The report on a task folder: what is wrong with it stands there, also that it cannot be read at all.
    Raises ``SandboxError`` when the backend itself fails, which says nothing of the task, and ``UserError``
    for one that does not isolate: the agents here overwrite what they find.
    """
    if not backend.isolates:
        raise UserError(
            f"validation runs hostile agents, and backend {backend.name} would let them on this host"
        )
    try:
        task = load_task(folder)
    except UserError as error:
        line = Line("the folder is a task", False, str(error))
        return Report(folder.name, folder.name, "", backend.name, False, str(error), [line])
    lines = [Line("the folder is a task", True, task.digest), *rubric(task)]
    runs: list[Run] = []
    try:
        image = await task.build(backend)
        lines.append(Line("the image builds", True, image.name))
    except ImageError as error:
        lines.append(Line("the image builds", False, str(error)))
    else:
        runs, tried = await _try(task, image, backend, repeats)
        lines += tried
    failed = next((line for line in lines if line.decisive and not line.passed), None)
    reason = f"{failed.name}: {failed.evidence}" if failed else ""
    return Report(
        task.name, folder.name, task.digest, backend.name, not failed, " ".join(reason.split()), lines, runs
    )


async def _try(
    task: HarborTask, image: Image, backend: Backend, repeats: int
) -> tuple[list[Run], list[Line]]:
    commands = {"nop": ":", "planted": FORGERY, "emptied": _emptying(task, image)}
    if task.solution is not None:
        commands["oracle"] = solution_command(task)
    attempts: list[_Attempt] = []
    for agent, command in commands.items():
        for _ in range(repeats if agent in ("nop", "oracle") else 1):
            attempts.append(await _attempt(task, image, backend, agent, command))
    if programs := attempts[-1].programs:  # of the solution
        attempts.append(await _attempt(task, image, backend, "forger", forgers(programs)))
    runs, places = [attempt.run for attempt in attempts], " ".join(attempts[0].places)
    return runs, _judge(runs, places)


async def _attempt(task: HarborTask, image: Image, backend: Backend, agent: str, command: str) -> _Attempt:
    start = time.monotonic()
    folders = [item.source for item in artifacts(task, image)]
    async with await backend.start(image, task.limits) as sandbox:
        places = await _lines(sandbox, f"ls -d {' '.join(SECRET_PLACES)} 2> /dev/null", agent == "nop")
        await make_folders(sandbox)
        environment = task.variables(task.config.environment.env)
        seconds = task.config.agent.timeout_sec or 600.0
        cwd = work_directory(task, image)
        await sandbox.run(command, seconds=seconds, cwd=cwd, environment=environment)
        programs = await _lines(sandbox, programs_in(folders), agent == "oracle")
        grading = await verify(task, sandbox, image, backend)
    if grading.outcome == rewards.BROKEN:
        raise SandboxError(grading.reason)
    seconds, output = round(time.monotonic() - start, 3), grading.output[-2000:]
    run = Run(agent, grading.reward, grading.outcome, grading.reason, seconds, output)
    return _Attempt(run, places, programs)


async def _lines(sandbox: Sandbox, command: str, wanted: bool) -> list[str]:
    """The lines that a command prints; it is run where they are wanted."""
    return (await sandbox.run(command, cwd="/")).output.splitlines() if wanted else []


def _judge(runs: list[Run], places: str) -> list[Line]:
    agents = ("nop", "oracle", "planted", "forger")
    by_agent = {agent: [run for run in runs if run.agent == agent] for agent in agents}
    ungraded = [run for run in runs if run.outcome != rewards.GRADED and run.agent != "forger"]
    return [
        Line("the image has no /tests and no /solution", not places, places or "neither is there"),
        _scores("doing nothing scores 0", by_agent["nop"], 0.0),
        _scores("the solution scores 1", by_agent["oracle"], 1.0),
        _same(runs),
        _scores("planted forgeries score 0", by_agent["planted"], 0.0),
        _forged(by_agent["forger"]),
        Line(
            "a reward is always written", not ungraded,
            f"{ungraded[0].agent}: {ungraded[0].reason}" if ungraded else f"{len(runs)} runs",
        ),
    ]  # fmt: skip


def _scores(name: str, runs: list[Run], wanted: float) -> Line:
    if not runs:
        return Line(name, False, "there is nothing to run")
    wrong = next((run for run in runs if run.reward != wanted), None)
    evidence = ", ".join(str(run.reward) for run in runs)
    if wrong is not None:
        last = wrong.output.strip().splitlines()[-1:] or [wrong.reason]
        evidence += f" ({last[0][:200]})"
    return Line(name, wrong is None, evidence)


def _forged(runs: list[Run]) -> Line:
    forged = [run for run in runs if run.reward]
    evidence = "tried" if runs else "the solution delivers no program"
    if forged:
        evidence = "the tests run it with rights over the rewards: let verifier.collect run it"
    return Line("a delivered program cannot forge", not forged, evidence, decisive=False)


def _same(runs: list[Run]) -> Line:
    for agent in ("nop", "oracle"):
        results = {(run.reward, run.outcome) for run in runs if run.agent == agent}
        if len(results) > 1:
            shown = ", ".join(f"{run.reward} ({run.outcome})" for run in runs if run.agent == agent)
            return Line("every run gives the same", False, f"{agent}: {shown}")
    return Line("every run gives the same", True, "nop and oracle do not vary")


def _emptying(task: HarborTask, image: Image) -> str:
    """Remove all that is carried: the worst that an agent can hand over."""
    places = " ".join(f"{item.source}/* {item.source}/.[!.]*" for item in artifacts(task, image))
    return f"rm -rf {places}; true"
