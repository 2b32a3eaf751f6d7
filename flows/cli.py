"""The ``glm5`` command."""

import argparse

from pipeline.errors import run_command


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``glm5`` command; never returns."""
    run_command(lambda: _run(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glm5", description="The GLM-5 recipe as one graph of stages.")
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run the stages of a recipe, or one of them, with no server")
    run.add_argument("stage", nargs="*", help="only these stages; none for all")
    _add_selection(run)

    pipeline = commands.add_parser("pipeline", help="the same through Prefect: `make pipeline`")
    _add_selection(pipeline)
    pipeline.add_argument(
        "--port", type=int, help="of the Prefect server (default: the first free from 4200)"
    )

    commands.add_parser("stop", help="end the Prefect server and worker of this clone")
    return parser


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", default="tiny", help="a name in recipes/ (default: tiny)")
    parser.add_argument("--from", dest="start", metavar="STAGE", help="only this stage and all that follow")
    parser.add_argument("--only", nargs="+", default=[], metavar="STAGE", help="only these stages")
    parser.add_argument("--force", action="store_true", help="run although up to date")
    parser.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE",
        help="write a value into the recipe file first, like sft.optimizer.muon_lr=0.003",
    )  # fmt: skip


def _run_plain(arguments: argparse.Namespace) -> int:
    from flows.plain import run_pipeline

    only = (*arguments.stage, *arguments.only)
    return run_pipeline(
        arguments.recipe, arguments.start, only, arguments.force, tuple(arguments.assignments)
    )


def _run_prefect(arguments: argparse.Namespace) -> int:
    from flows.through_prefect import run_through_prefect

    return run_through_prefect(
        arguments.recipe,
        arguments.start,
        arguments.only,
        arguments.force,
        arguments.assignments,
        arguments.port,
    )


def _stop(_: argparse.Namespace) -> int:
    from flows import server

    print("\n".join(f"ended the {name}" for name in server.stop()) or "nothing was running")
    return 0


COMMANDS = {"run": _run_plain, "pipeline": _run_prefect, "stop": _stop}


def _run(arguments: argparse.Namespace) -> int:
    """Each command imports what it needs, so that all of them start at once."""
    return COMMANDS[arguments.command](arguments)


if __name__ == "__main__":
    main()
