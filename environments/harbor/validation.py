"""Is a task sound? Built, tried by agents whose result is known, and read against the rubric.

    report = await validate(folder, backend)
    report.sound, report.reason, report.to_json()

Tried are an agent that does nothing (must score 0), the task's own solution (must score 1), both as often as
``repeats`` says with the same result each time; an agent that does none of the work but plants every forgery
that needs no knowledge of the task (must score 0), and one that removes the work (must leave a reward).
"""

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from environments.harbor import rewards
from environments.harbor.rewards import Grading
from environments.harbor.rubric import Line, rubric
from environments.harbor.solution import solution_command
from environments.harbor.task import HarborTask, load_task
from environments.harbor.verifier import artifacts, make_folders, verify, work_directory
from environments.sandbox.interface import Backend, Image, ImageError, Sandbox, SandboxError
from pipeline.errors import UserError

SECRET_PLACES = ("/tests", "/solution")

# Without doing the work: stale rewards, a process that goes on writing them, tests of its own, start-up files
# of Python, pytest and shells in every place that one may look, commands of its own, in front of others too.
FORGERY = r"""
forge() {
  mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1}' > /logs/verifier/reward.json
}
forge
printf '#!/bin/bash\nmkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; exit 0\n' > /tests/test.sh
chmod +x /tests/test.sh
(trap '' HUP TERM; while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.05; done) > /dev/null 2>&1 &
lie="import os; os.makedirs('/logs/verifier', exist_ok=True); open('/logs/verifier/reward.txt', 'w').write('1'); os._exit(0)"
for place in . / /tests /root "$HOME" /tmp; do
  for name in sitecustomize usercustomize conftest pytest json random pathlib subprocess unittest; do
    echo "$lie" > "$place/$name.py"
  done
  printf 'echo 1 > /logs/verifier/reward.txt; exit 0\n' | tee "$place/.bashrc" "$place/.profile" > "$place/.bash_env"
  printf '[pytest]\naddopts = --collect-only\n' > "$place/pytest.ini"
  mkdir -p "$place/bin"
  for name in python python3 pytest bash sh; do
    printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt; exit 0\n' > "$place/bin/$name"; chmod +x "$place/bin/$name"
  done
done
if [ -d .git/hooks ]; then for name in post-checkout pre-commit post-index-change; do
  printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n' > .git/hooks/$name; chmod +x .git/hooks/$name
done; fi
exit 0
"""  # noqa: E501


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
    Raises ``SandboxError`` when the backend itself fails, which says nothing of the task.
    """
    try:
        task = load_task(folder)
    except UserError as error:
        line = Line("the folder is a task", False, str(error))
        return Report(folder.name, folder.name, "", backend.name, False, str(error), [line])
    lines = [Line("the folder is a task", True, task.digest), *rubric(task)]
    runs: list[Run] = []
    try:
        image = await backend.build(task.environment)
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
    runs, places = [], ""
    for agent, command in commands.items():
        for _ in range(repeats if agent in ("nop", "oracle") else 1):
            run, found = await _attempt(task, image, backend, agent, command)
            runs.append(run)
            places = places or found
    return runs, _judge(runs, places)


async def _attempt(
    task: HarborTask, image: Image, backend: Backend, agent: str, command: str
) -> tuple[Run, str]:
    """One run and which of the secret places were there before it."""
    start = time.monotonic()
    async with await backend.start(image, task.limits) as sandbox:
        places = await _secret_places(sandbox)
        await make_folders(sandbox)
        environment = task.variables(task.config.environment.env)
        seconds = task.config.agent.timeout_sec or 600.0
        cwd = work_directory(task, image)
        await sandbox.run(command, seconds=seconds, cwd=cwd, environment=environment)
        grading: Grading = await verify(task, sandbox, image, backend)
    if grading.outcome == rewards.BROKEN:
        raise SandboxError(grading.reason)
    seconds = round(time.monotonic() - start, 3)
    return Run(
        agent, grading.reward, grading.outcome, grading.reason, seconds, grading.output[-2000:]
    ), places


async def _secret_places(sandbox: Sandbox) -> str:
    result = await sandbox.run(f"ls -d {' '.join(SECRET_PLACES)} 2> /dev/null", cwd="/")
    return " ".join(result.output.split())


def _judge(runs: list[Run], places: str) -> list[Line]:
    by_agent = {agent: [run for run in runs if run.agent == agent] for agent in ("nop", "oracle", "planted")}
    ungraded = [run for run in runs if run.outcome != rewards.GRADED]
    return [
        Line("the image has no /tests and no /solution", not places, places or "neither is there"),
        _scores("doing nothing scores 0", by_agent["nop"], 0.0),
        _scores("the solution scores 1", by_agent["oracle"], 1.0),
        _same(runs),
        _scores("planted forgeries score 0", by_agent["planted"], 0.0),
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
