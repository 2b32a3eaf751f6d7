"""``glm5 env``: what there is to solve, try one, check one.

glm5 env list
glm5 env try tools/chain --seed 3
glm5 env try terminal --tasks artifacts/tiny/agent_tasks/tasks
glm5 env validate FOLDER
"""

import argparse
import asyncio
import random
import sys

from environments.attempt import attempt
from environments.catalog import environments, find_family, select
from environments.interface import Environment
from pipeline.errors import UserError, run_command


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glm5 env", description="Environments: tasks with a verifier.")
    commands = parser.add_subparsers(required=True)

    listing = commands.add_parser("list", help="all environments and their families")
    listing.add_argument("names", nargs="*", help="only these")
    listing.set_defaults(run=_list)

    trying = commands.add_parser("try", help="solve a task yourself, or watch the oracle: /oracle")
    trying.add_argument("name", metavar="ENVIRONMENT[/FAMILY]")
    trying.add_argument("--seed", type=int, help="of the task (default: a random one)")
    trying.add_argument("--heldout", action="store_true", help="from the side that is never trained")
    trying.set_defaults(run=_try)
    return parser


def _list(options: argparse.Namespace) -> int:
    catalog = environments()
    for name, environment in select(catalog, options.names or catalog).items():
        print(f"{name:14}{' '.join(environment.families)}")
        if environment.evaluation_only:
            print(f"{'':14}for evaluation alone: {' '.join(environment.evaluation_only)}")
    return 0


def _try(options: argparse.Namespace) -> int:
    environment, family = find_family(environments(), options.name)
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
