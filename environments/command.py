"""``glm5 env``: what there is to solve, try one, check one.

glm5 env list
glm5 env try tools/chain --seed 3
glm5 env try tools/chain --record episode.json
glm5 env try harbor/log-report
glm5 env try harbor --tasks FOLDER
glm5 env validate FOLDER
glm5 env validate tasks.tar.gz
"""

import argparse
import asyncio
import random
import signal
import sys
import uuid
from pathlib import Path

from environments.attempt import attempt, harmless
from environments.catalog import environments, find_family, select
from environments.harbor.checking import check
from environments.interface import Environment, Verdict
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Backend
from environments.trajectory import Trajectory
from pipeline import artifacts
from pipeline.errors import UserError, run_command
from pipeline.files import write_whole
from pipeline.recipe import load_recipe

RUN_CODE = ("programs", "python_tool")  # what a person writes runs in a sandbox
# Environments over what a stage makes.
FROM_STAGES = {"search": "search_tasks", "harbor": "agent_tasks"}
LEFT = "left without a verdict"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glm5 env", description="Environments: tasks with a verifier.")
    commands = parser.add_subparsers(required=True)

    listing = commands.add_parser("list", help="all environments and their families")
    listing.add_argument("names", nargs="*", help="only these")
    _add_folders(listing)
    listing.set_defaults(run=_list)

    trying = commands.add_parser("try", help="solve a task yourself, or watch the oracle: /oracle")
    trying.add_argument("name", metavar="ENVIRONMENT[/FAMILY]")
    trying.add_argument("--seed", type=int, help="of the task (default: a random one)")
    trying.add_argument("--heldout", action="store_true", help="from the side that is never trained")
    trying.add_argument("--record", type=Path, metavar="FILE", help="write the episode there, as ATIF 1.8")
    _add_folders(trying)
    trying.set_defaults(run=_try)

    checking = commands.add_parser("validate", help="is a Harbor task, or each of a folder of them, sound?")
    checking.add_argument("path", type=Path, help="a folder, or a .tar, .tar.gz, .tar.xz or .zip of it")
    checking.add_argument("--backend", help="bubblewrap or docker (default: the best that works)")
    checking.add_argument("--repeats", type=int, default=3, help="of each trial (default: 3)")
    checking.add_argument("--json", action="store_true", help="the whole report, a line a task")
    checking.set_defaults(run=_validate)

    box = commands.add_parser("sandbox", help="which sandbox works on this machine, and how it keeps limits")
    box.set_defaults(run=_sandbox)
    return parser


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipe", default="tiny", help="whose search corpus and agent tasks (default: tiny)"
    )
    parser.add_argument("--tasks", type=Path, help="a folder of Harbor tasks instead of the recipe's")


def _catalog(options: argparse.Namespace, backend: Backend | None = None) -> dict[str, Environment]:
    """All environments; those over artifacts where the artifacts are finished."""
    recipe = load_recipe(options.recipe).name
    tasks = options.tasks or artifacts.artifact_dir(recipe, "agent_tasks") / "tasks"
    corpus = artifacts.artifact_dir(recipe, "search_tasks") / "corpus"
    if options.tasks and not options.tasks.is_dir():
        raise UserError(f"there is no folder {options.tasks} of tasks")
    catalog = environments(
        corpus=corpus if corpus.is_dir() else None,
        agent_tasks=tasks if tasks.is_dir() else None,
        backend=backend,
    )
    for fault in getattr(catalog.get("harbor"), "faults", ()):
        print(harmless(f"left out: {fault}"), file=sys.stderr)
    return catalog


def _list(options: argparse.Namespace) -> int:
    catalog = _catalog(options)
    for name, environment in select(catalog, options.names or catalog).items():
        print(f"{name:14}{' '.join(environment.families) or '-'}")
        if environment.evaluation_only:
            print(f"{'':14}for evaluation alone: {' '.join(environment.evaluation_only)}")
    for name, stage in FROM_STAGES.items():
        if name not in catalog and not options.names:
            print(f"{name:14}(of stage {stage}, which recipe {options.recipe} has not finished)")
    return 0


def _try(options: argparse.Namespace) -> int:
    name = options.name.partition("/")[0]
    catalog = _catalog(options, _backend(name))
    stage = FROM_STAGES.get(name)
    if stage and name not in catalog:
        raise UserError(
            f"{options.name} needs stage {stage} of recipe {options.recipe}, which is not finished: give "
            f"another --recipe, or run `glm5 run {stage} --recipe {options.recipe}`"
        )
    environment, family = find_family(catalog, options.name)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    task = _task(environment, family, seed, options.heldout)
    print(f"{task.id} (seed {seed}, difficulty {task.difficulty}, {task.provenance}, {task.licence})")
    if options.record:
        _check_place(options.record)
    # asyncio's own handler would wait for the line that is being read.
    signal.signal(signal.SIGINT, _interrupt)
    tried = asyncio.run(attempt(environment, task, input if sys.stdin.isatty() else _piped))
    print(_judged(tried.verdict))
    if options.record:
        verdict = tried.verdict or Verdict(None, LEFT)
        trajectory = Trajectory.of_dialogue(
            task, tried.messages, verdict, tried.agent, session=uuid.uuid4().hex
        )
        try:
            write_whole(options.record, trajectory.to_json() + "\n")
        except OSError as error:
            raise UserError(f"{options.record} cannot be written ({error.strerror})") from None
    if tried.refused and not sys.stdin.isatty():
        raise UserError(f"not all that the pipe said was done: {'; '.join(tried.refused)}")
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _backend(name: str) -> Backend | None:
    """For the programs of an environment's tasks. ``search`` can do without."""
    if name not in (*RUN_CODE, "search"):
        return None
    try:
        return open_backend()
    except UserError as error:
        if name != "search":
            raise
        print(f"without the tool python: {error}", file=sys.stderr)
        return None


def _check_place(path: Path) -> None:
    """Before the episode begins: nobody shall solve a task and then hear that it cannot be kept."""
    try:
        path.open("x").close()
        path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be made ({error.strerror}): give --record another file") from None


def _judged(verdict: Verdict | None) -> str:
    if verdict is None:
        return LEFT
    if verdict.reward is None:
        return f"no reward, the environment failed: {verdict.reason}"
    return f"reward {verdict.reward:g}: {verdict.reason}"


def _validate(options: argparse.Namespace) -> int:
    return check(options.path, options.backend, options.repeats, options.json)


def _sandbox(_: argparse.Namespace) -> int:
    backend = open_backend()
    print(f"{backend.name} ({backend.enforced})")
    return 0


def _piped(_: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _task(environment: Environment, family: str, seed: int, heldout: bool):
    """A task of the named family, or of one that the seed chooses; evaluation families are held out."""
    known = environment.families + environment.evaluation_only
    if not known:
        raise UserError(f"environment {environment.name} has no tasks here")
    chosen = family or known[seed % len(known)]
    return environment.make_task(chosen, seed, heldout or chosen in environment.evaluation_only)


if __name__ == "__main__":
    run_command(main)
