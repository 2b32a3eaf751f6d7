"""Run the pipeline as plain Python: no server, no Prefect; DVC where this is its repository."""

import os
import time

from flows import executors
from flows.executors import Listener, Outcome
from flows.known_families import refuse_unknown_families
from flows.parameters import override
from flows.schedule import run_graph
from flows.terminal import View
from pipeline import artifacts
from pipeline.graph import Stage, load_graph, select
from pipeline.mlflow_sink import PARENT
from pipeline.recipe import load_recipe


def run_pipeline(
    recipe: str,
    start: str | None = None,
    only: tuple[str, ...] = (),
    force: bool = False,
    assignments: tuple = (),
) -> int:
    """Run the selected stages of a recipe and show them. Returns the exit status: 1 when one failed."""
    graph = load_graph()
    selected = select(graph, start, only)
    name = load_recipe(recipe).name
    view = View(name)
    stage = only[0] if len(only) == 1 else None
    messages = override(recipe, list(assignments), stage) if assignments else []
    refuse_unknown_families(recipe, graph)
    for message in [*messages, *executors.prepare(recipe)]:
        view.say(message)
    os.environ.setdefault(PARENT, f"{name} {time.strftime('%Y-%m-%d %H:%M:%S')}")
    listener = Listener(on_tick=view.tick)
    unchanged = set() if force else executors.unchanged(graph, selected, recipe)

    def run(stage: Stage) -> Outcome:
        view.started(stage.name)
        if stage.name in unchanged:
            outcome = executors.skip(stage, recipe)
        else:
            outcome = executors.run(stage, recipe, force, listener)
        if outcome.skipped:
            view.skipped(stage.name)
        else:
            view.finished(stage.name, outcome.record)
        return outcome

    started = time.time()
    result = run_graph(graph, selected, run, listener.stop, on_failure=view.failed)
    if result.not_started:
        view.say(f"not started, since an input failed: {', '.join(result.not_started)}")
    view.say(summary(name, result.outcomes, time.time() - started))
    return 1 if result.failures else 0


def summary(recipe: str, outcomes: dict[str, Outcome], seconds: float) -> str:
    ran = sum(not outcome.skipped for outcome in outcomes.values())
    unchanged = len(outcomes) - ran
    text = (
        f"{ran} {'stage' if ran == 1 else 'stages'} ran, {unchanged} {'was' if unchanged == 1 else 'were'} "
    )
    text += f"up to date, {seconds:.0f} s"
    page = artifacts.artifact_dir(recipe, "report") / "report.html"
    return f"{text}; report: {page}" if "report" in outcomes and page.exists() else text
