"""The ``glm5`` command."""

import argparse

from pipeline.errors import run_command


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``glm5`` command; never returns."""
    run_command(lambda: _run(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glm5", description="The GLM-5 recipe as one graph of stages.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the stages of a recipe, or one of them")
    run.add_argument("stage", nargs="*", help="only these stages; none for all")
    run.add_argument("--recipe", default="tiny", help="a name in recipes/ (default: tiny)")
    run.add_argument(
        "--from", dest="start", metavar="STAGE", help="only this stage and all that follow from it"
    )
    run.add_argument("--only", nargs="+", default=[], metavar="STAGE", help="the same as naming stages")
    run.add_argument("--force", action="store_true", help="run although up to date")
    run.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE",
        help="write a value into the recipe file first, like sft.optimizer.muon_lr=0.003",
    )  # fmt: skip
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "run":
        from flows.plain import run_pipeline

        only = (*arguments.stage, *arguments.only)
        return run_pipeline(
            arguments.recipe, arguments.start, only, arguments.force, tuple(arguments.assignments)
        )
    raise AssertionError(arguments.command)


if __name__ == "__main__":
    main()
