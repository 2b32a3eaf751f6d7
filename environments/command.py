"""``glm5 env``: what there is to solve, try one, check one.

glm5 env list
glm5 env try tools/chain --seed 3
glm5 env try harbor/log-report
glm5 env try harbor --tasks FOLDER
glm5 env validate FOLDER
"""

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path

from environments.attempt import attempt, harmless
from environments.catalog import environments, find_family, select
from environments.harbor.validation import Report, validate
from environments.interface import Environment
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Backend, SandboxError
from pipeline import artifacts
from pipeline.errors import UserError, run_command

RUN_CODE = ("programs", "python_tool")  # what a person writes runs in a sandbox
# Environments over what a stage makes.
FROM_STAGES = {"search": "search_tasks", "harbor": "agent_tasks"}


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
    _add_folders(trying)
    trying.set_defaults(run=_try)

    checking = commands.add_parser("validate", help="is a Harbor task, or each of a folder of them, sound?")
    checking.add_argument("folder", type=Path)
    checking.add_argument("--backend", help="bubblewrap or docker (default: the best that works)")
    checking.add_argument("--repeats", type=int, default=3, help="of each trial (default: 3)")
    checking.add_argument("--json", action="store_true", help="the whole report, a line a task")
    checking.set_defaults(run=_validate)

    box = commands.add_parser("sandbox", help="which sandbox works on this machine")
    box.set_defaults(run=_sandbox)
    return parser


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipe", default="tiny", help="whose search corpus and agent tasks (default: tiny)"
    )
    parser.add_argument("--tasks", type=Path, help="a folder of Harbor tasks instead of the recipe's")


def _catalog(options: argparse.Namespace, backend: Backend | None = None) -> dict[str, Environment]:
    """All environments; those over artifacts where the artifacts are finished."""
    made = artifacts.root() / "artifacts" / options.recipe
    tasks, corpus = options.tasks or made / "agent_tasks" / "tasks", made / "search_tasks" / "corpus"
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
    wants_sandbox = options.name.partition("/")[0] in RUN_CODE
    catalog = _catalog(options, open_backend() if wants_sandbox else None)
    stage = FROM_STAGES.get(options.name.partition("/")[0])
    if stage and options.name.partition("/")[0] not in catalog:
        raise UserError(
            f"{options.name} needs stage {stage} of recipe {options.recipe}, which is not finished: give "
            f"another --recipe, or run `glm5 run {stage} --recipe {options.recipe}`"
        )
    environment, family = find_family(catalog, options.name)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    task = _task(environment, family, seed, options.heldout)
    print(f"{task.id} (seed {seed}, difficulty {task.difficulty}, {task.provenance}, {task.licence})")
    verdict = asyncio.run(attempt(environment, task, input if sys.stdin.isatty() else _piped))
    if verdict is None:
        print("left without a verdict")
    else:
        reward = (
            "no reward, the environment failed" if verdict.reward is None else f"reward {verdict.reward:g}"
        )
        print(f"{reward}: {verdict.reason}")
    return 0


def _validate(options: argparse.Namespace) -> int:
    """0 when every task is sound. A broken one does not keep the others from being checked."""
    if not options.folder.is_dir():
        raise UserError(f"{options.folder} is not a folder: name a task's folder, or one of tasks")
    single = (options.folder / "task.toml").exists()
    folders = (
        [options.folder] if single else sorted(path for path in options.folder.iterdir() if path.is_dir())
    )
    if not folders:
        raise UserError(f"{options.folder} holds no task: a task is a folder with task.toml")
    if options.repeats < 1:
        raise UserError(f"--repeats {options.repeats} is less than 1")
    backend = open_backend(options.backend)
    sound = 0
    for folder in folders:
        try:
            report = asyncio.run(validate(folder, backend, options.repeats))
        except (SandboxError, UserError, ValueError, ArithmeticError, OSError) as error:
            print(harmless(f"{folder.name}: not checked: {' '.join(str(error).split())}"), flush=True)
            continue
        sound += report.sound
        told = json.dumps(json.loads(report.to_json())) if options.json else harmless(_told(report))
        print(told, flush=True)
    if not single and not options.json:
        print(f"{sound} of {len(folders)} tasks are sound")
    return int(sound < len(folders))


def _sandbox(_: argparse.Namespace) -> int:
    print(open_backend().name)
    return 0


def _told(report: Report) -> str:
    lines = [f"{report.name}: {'sound' if report.sound else f'rejected: {report.reason}'} ({report.backend})"]
    lines += [f"  {'ok ' if line.passed else 'NO '} {line.name}: {line.evidence}" for line in report.lines]
    lines += [
        f"  {run.agent}: {'no reward' if run.reward is None else f'{run.reward:g}'} in {run.seconds:.1f} s"
        f"{f', {run.reason}' if run.reason else ''}"
        for run in report.runs
    ]
    return "\n".join(lines)


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
