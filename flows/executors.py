"""Two ways to run a stage as a child process: through ``dvc repro -s``, or bare. Neither needs Prefect."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flows.child import Exit, run_child
from flows.parameters import activate
from pipeline import artifacts, surroundings
from pipeline.graph import Stage, ancestors, descendants, load_graph
from pipeline.recipe import load_recipe
from pipeline.stage import END_WITH_PARENT, FORCE

LOG = "log.txt"
SECONDS_BETWEEN_TRIES = 1.0
SECONDS_FOR_STATUS = 600.0  # DVC reads every artifact that it has not seen yet
# What DVC says when another process of it holds a file, and what a stage says when it runs already.
BUSY = ("is busy, it is being blocked by", "Unable to acquire lock", "another process is running this stage")


class StageFailed(Exception):
    """A stage that did not finish; the text is the stage's own sentence."""

    def __init__(self, sentence: str, killed: bool):
        super().__init__(sentence)
        self.killed = killed  # by a signal: worth another try, it goes on from its last checkpoint


class StageStopped(Exception):
    """The run was told to stop while the stage ran."""


@dataclass(frozen=True)
class Outcome:
    """What running a stage gave."""

    stage: str
    skipped: bool  # it was up to date, or made so by another run while this one waited
    seconds: float
    record: dict


@dataclass
class Listener:
    """Who hears of a running stage. ``stop`` ends it."""

    on_line: Callable[[str], None] = lambda line: None
    on_tick: Callable[[], None] = lambda: None
    stop: threading.Event = field(default_factory=threading.Event)


def uses_dvc(recipe: str) -> bool:
    """Whether stages run through DVC: it is installed, this is its repository, and nothing is relocated."""
    here = Path(".dvc/config").exists() and Path(".git").exists()
    by_name = not recipe.endswith((".yaml", ".yml"))
    return here and by_name and "GLM5_ROOT" not in os.environ and importlib.util.find_spec("dvc") is not None


def prepare(recipe: str) -> list[str]:
    """What must be true before stages of a recipe run. Returns messages for the person who started it."""
    return activate(recipe) if uses_dvc(recipe) else []


def unchanged(graph: dict[str, Stage], selected: list[str], recipe: str) -> set[str]:
    """The selected stages that DVC would skip: one question for all instead of a child process for each.

    Asked before a run starts. When DVC cannot tell (another run holds its files), the answer is none. What
    DVC does not watch, the sources of ``collect``, is looked at here.
    """
    if not uses_dvc(recipe):
        return set()
    made = [name for name in selected if artifacts.read_record(artifacts.artifact_dir(recipe, name))]
    if not made:
        return set()
    targets = {f"{name}@{recipe}": name for name in made}
    command = [sys.executable, "-m", "dvc", "status", "--json", *targets]
    try:
        done = subprocess.run(
            command, env=_environment(False), capture_output=True, text=True, timeout=SECONDS_FOR_STATUS
        )
    except subprocess.TimeoutExpired:
        return set()
    if done.returncode:
        return set()
    changed = {targets[key] for key in json.loads(done.stdout) if key in targets}
    loaded = load_recipe(recipe)
    changed |= {name for name in selected if surroundings.changed(graph[name], loaded)}
    found: set[str] = set()
    for name in selected:
        if name in made and name not in changed and not ancestors(graph, name) & (set(selected) - found):
            found.add(name)
    return found


def skip(stage: Stage, recipe: str) -> Outcome:
    """The outcome of a stage that ``unchanged`` named."""
    return Outcome(stage.name, True, 0.0, artifacts.verify(artifacts.artifact_dir(recipe, stage.name)))


def niceness(stage: Stage, graph: dict[str, Stage]) -> int:
    """How far a stage yields to others on the same cores: a training stage not at all, a data stage the more,
    the fewer training stages wait for it.
    """
    if stage.accelerator:
        return 0
    waiting = sum(graph[name].accelerator for name in descendants(graph, stage.name))
    training = sum(one.accelerator for one in graph.values())
    return min(19, 1 + 2 * (training - waiting))


def run(
    stage: Stage, recipe: str, force: bool, listener: Listener, limit_seconds: float | None = None
) -> Outcome:
    """Run one stage to its end in a child process. Raises ``StageFailed`` or ``StageStopped``."""
    name = Path(recipe).stem if recipe.endswith((".yaml", ".yml")) else recipe
    folder = artifacts.artifact_dir(name, stage.name)
    log = artifacts.run_dir(name, stage.name) / LOG
    if uses_dvc(recipe):  # DVC does not see that a source changed; the stage itself does, once it is started
        command = _dvc_command(stage, name, force or surroundings.changed(stage, load_recipe(recipe)))
    else:
        command = _bare_command(stage, recipe)
    yields, started = niceness(stage, load_graph()), time.time()
    while True:
        ended = run_child(
            command, _environment(force), log, listener.on_line, listener.on_tick, listener.stop,
            niceness=yields, limit_seconds=limit_seconds,
        )  # fmt: skip
        if ended.ended_by == "stop":
            raise StageStopped(f"{stage.name} was stopped; it goes on from its last checkpoint next time")
        if ended.ended_by == "limit":
            sentence = f"{stage.name} was ended after its time limit of {limit_seconds:.0f} s (see {log})"
            raise StageFailed(sentence, killed=False)
        if ended.status == 0:
            break
        if not _is_busy(ended):
            raise _failure(stage, ended, log)
        listener.on_line("something else uses this stage's files: waiting for it")
        if listener.stop.wait(SECONDS_BETWEEN_TRIES):
            raise StageStopped(f"{stage.name} was stopped while it waited")
    record = artifacts.read_record(folder)
    if record is None:
        raise StageFailed(f"{stage.name} ended without an artifact in {folder} (see {log})", killed=False)
    return Outcome(stage.name, record["started"] < started, time.time() - started, record)


def _bare_command(stage: Stage, recipe: str) -> list[str]:
    return [sys.executable, "-m", stage.module, "--recipe", recipe]


def _dvc_command(stage: Stage, recipe: str, force: bool) -> list[str]:
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", f"{stage.name}@{recipe}"]
    return [*command, "--force"] if force else command


def _environment(force: bool) -> dict[str, str]:
    """This process's, with this Python first on PATH: DVC starts ``python -m ...`` from there."""
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", "")])}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    environment["DVC_NO_ANALYTICS"] = "1"
    # Threads wait for each other awake, but not for long: never spinning halves the speed of training on two
    # cores, and spinning for GCC's default time stalls it where other programs want the same cores.
    environment.setdefault("GOMP_SPINCOUNT", "3000")
    environment[END_WITH_PARENT] = "1"
    environment.pop(FORCE, None)
    if force:
        environment[FORCE] = "1"
    return environment


def _is_busy(ended: Exit) -> bool:
    return any(sentence in line for line in ended.lines[-20:] for sentence in BUSY)


def _failure(stage: Stage, ended: Exit, log: Path) -> StageFailed:
    """The stage's own last sentence, found in what it printed."""
    killed = ended.status < 0 or any("exited with -" in line for line in ended.lines[-20:])
    for line in reversed(ended.lines):
        if line.startswith("error: "):
            return StageFailed(f"{stage.name}: {line.removeprefix('error: ')}", killed)
    if any("No space left on device" in line for line in ended.lines):  # DVC's own words
        sentence = (
            f"the disk is full: free some space and start it again; what was finished is kept (see {log})"
        )
        return StageFailed(f"{stage.name}: {sentence}", killed=False)
    if killed:
        return StageFailed(f"{stage.name}: its process was killed (out of memory?); see {log}", killed)
    return StageFailed(f"{stage.name}: {_last_of_traceback(ended.lines)} (see {log})", killed)


def _last_of_traceback(lines: list[str]) -> str:
    """``ValueError: ...``: the first unindented line after the last traceback, else the last line."""
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback ")]
    for line in lines[starts[-1] + 1 :] if starts else []:
        if line and not line[0].isspace():
            return line
    return next((line for line in reversed(lines) if line), "it ended without a word")
