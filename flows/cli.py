"""The ``glm5`` command."""

import argparse
import importlib.util

from pipeline.errors import UserError, run_command


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``glm5`` command; never returns."""
    parser = _parser()
    parsed, parsed.further = parser.parse_known_args(arguments)
    if parsed.further and parsed.command not in PASSING_ON:
        parser.error(f"unrecognized arguments: {' '.join(parsed.further)}")
    run_command(lambda: COMMANDS[parsed.command](parsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glm5", description="The GLM-5 recipe as one graph of stages.")
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run the stages of a recipe, or one of them, with no server")
    _add_selection(run)

    pipeline = commands.add_parser("pipeline", help="the same through Prefect: `make pipeline`")
    _add_selection(pipeline)
    pipeline.add_argument(
        "--port", type=_port, help="of the Prefect server (default: the first free from 4200)"
    )

    commands.add_parser("stop", help="end the Prefect server and worker of this clone")
    _add_talking(commands)
    env = commands.add_parser(
        "env", add_help=False, help="environments: list, try one yourself, validate a task"
    )
    env.add_argument("rest", nargs=argparse.REMAINDER)
    _add_reading(commands)
    return parser


def _add_talking(commands: "argparse._SubParsersAction") -> None:
    """Commands that run a trained model; options that are not named here go to its program."""
    for name, text in (
        ("chat", "talk to a checkpoint in the terminal"),
        ("serve", "an OpenAI-compatible server with a chat page"),
    ):
        epilog = f"further options: `python -m {PASSING_ON[name]} --help`"
        command = commands.add_parser(name, help=text, epilog=epilog)
        command.add_argument("--recipe", default="tiny", help="a name in recipes/ (default: tiny)")
        command.add_argument("--stage", help="whose checkpoint (default: the last that is finished)")


def _add_reading(commands: "argparse._SubParsersAction") -> None:
    """Commands that only read."""
    for name, text in (
        ("status", "where each stage stands, and why"),
        ("explain", "the resolved recipe and what it costs, before anything is allocated"),
        ("report", "where the report card is"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--recipe", default="tiny", help="a name in recipes/ (default: tiny)")
        if name == "explain":
            command.add_argument("--device", choices=["cpu", "h100", "h200"], help="default: by preset")
            command.add_argument("--devices", type=_count, default=1, help="how many, with --device")
        if name == "report":
            command.add_argument("--open", action="store_true", help="open it in a browser")
            command.add_argument(
                "--compare", nargs=2, metavar=("A", "B"),
                help="two recipes, recipe/stage or artifact folders side by side instead",
            )  # fmt: skip
    release = commands.add_parser("release", help="put the last checkpoint into MLflow's model registry")
    release.add_argument("--recipe", default="tiny", help="a name in recipes/ (default: tiny)")
    commands.add_parser("doctor", help="what this machine lacks and how to get it")
    mlflow = commands.add_parser("mlflow", help="the MLflow pages of this clone, until Ctrl-C")
    mlflow.add_argument("--port", type=_port, default=5000)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", nargs="*", help="only these stages; none for all")
    parser.add_argument("--recipe", default="tiny", help="a name in recipes/ (default: tiny)")
    parser.add_argument("--from", dest="start", metavar="STAGE", help="only this stage and all that follow")
    parser.add_argument("--force", action="store_true", help="run although up to date")
    parser.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE",
        help="write a value into the recipe file first, like sft.optimizer.muon_lr=0.003",
    )  # fmt: skip


def _port(text: str) -> int:
    return _whole(text, 1, 65535)


def _count(text: str) -> int:
    return _whole(text, 1, 1_000_000)


def _whole(text: str, least: int, most: int) -> int:
    """The number that an option gives. Raises what argparse makes a sentence of."""
    number = int(text) if text.isascii() and text.lstrip("-").isdigit() else None
    if number is None or not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return number


def _require_prefect() -> None:
    if importlib.util.find_spec("prefect") is None:
        raise UserError("Prefect is not installed: `make pipeline` installs it, `glm5 run` does without it")


def _run_plain(arguments: argparse.Namespace) -> int:
    from flows.plain import run_pipeline

    return run_pipeline(
        arguments.recipe,
        arguments.start,
        tuple(arguments.stage),
        arguments.force,
        tuple(arguments.assignments),
    )


def _run_prefect(arguments: argparse.Namespace) -> int:
    _require_prefect()
    from flows.through_prefect import run_through_prefect

    return run_through_prefect(
        arguments.recipe,
        arguments.start,
        arguments.stage,
        arguments.force,
        arguments.assignments,
        arguments.port,
    )


def _stop(_: argparse.Namespace) -> int:
    _require_prefect()
    from flows import server

    print("\n".join(f"ended the {name}" for name in server.stop()) or "nothing was running")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from flows.status_table import print_status

    return print_status(arguments.recipe)


def _explain(arguments: argparse.Namespace) -> int:
    from flows.known_families import refuse_unknown_families
    from flows.quantized_size import describe_sizes
    from pipeline.recipe import load_recipe
    from pipeline.recipe.explain import default_device, describe

    recipe = load_recipe(arguments.recipe)
    refuse_unknown_families(arguments.recipe)
    device = (arguments.device, arguments.devices) if arguments.device else default_device(recipe)
    print(describe(recipe, *device))
    print("\n".join(describe_sizes(recipe)))
    return 0


def _talk(arguments: argparse.Namespace) -> None:
    from flows.talk import hand_over

    hand_over(PASSING_ON[arguments.command], arguments.recipe, arguments.stage, arguments.further)


def _env(arguments: argparse.Namespace) -> None:
    from flows.talk import become

    become("environments.command", [*arguments.further, *arguments.rest])


def _report(arguments: argparse.Namespace) -> int:
    from pipeline import artifacts
    from pipeline.recipe import load_recipe

    if arguments.compare:
        from flows.talk import become

        become("tasks.reporting.compare", arguments.compare)
    folder = artifacts.artifact_dir(load_recipe(arguments.recipe).name, "report")
    pages = sorted(folder.glob("*.html"))
    if not pages:
        raise UserError(f"there is no report in {folder} yet: run `glm5 run --recipe {arguments.recipe}`")
    print(pages[0].absolute())
    if arguments.open:
        import webbrowser

        webbrowser.open(pages[0].absolute().as_uri())
    return 0


def _release(arguments: argparse.Namespace) -> None:
    import os

    from flows.talk import become
    from pipeline.mlflow_sink import settings
    from pipeline.recipe import load_recipe

    os.environ.update(settings())  # before MLflow is imported
    become("pipeline.mlflow_registry", ["--recipe", load_recipe(arguments.recipe).name])


def _doctor(_: argparse.Namespace) -> int:
    from flows.doctor import print_report

    return print_report()


def _mlflow(arguments: argparse.Namespace) -> int:
    import os
    import sys

    from flows.ports import HOST, free_port
    from pipeline.mlflow_sink import require_store, settings, tracking_uri

    port = free_port(arguments.port)  # of these two MLflow would print a log, and try again for long
    require_store()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri()]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    os.execve(sys.executable, command, {**os.environ, **settings()})


# Each imports what it needs, so that all of them start at once.
COMMANDS = {
    "run": _run_plain, "pipeline": _run_prefect, "stop": _stop, "status": _status, "explain": _explain,
    "report": _report, "doctor": _doctor, "mlflow": _mlflow, "chat": _talk, "serve": _talk,
    "env": _env, "release": _release,
}  # fmt: skip
# Commands that become another program, with all further options.
PASSING_ON = {
    "chat": "model.inference.terminal", "serve": "model.inference.server", "env": "environments.command",
}  # fmt: skip


if __name__ == "__main__":
    main()
