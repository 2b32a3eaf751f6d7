"""The whole graph as a Prefect flow; ``python -m flows.full_pipeline --recipe tiny`` does it with no server.

The graph is read from ``dvc.yaml``. Each stage is a task that runs a child process when its inputs are there.
"""

import sys

from flows import cli

if __name__ == "__main__":  # before Prefect is imported: it is not needed here, and need not be installed
    cli.main(["run", *sys.argv[1:]])

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.states import Completed, Failed, State
from prefect.task_runners import ThreadPoolTaskRunner

from flows import executors
from flows.stage import GRAPH, RecipeName, StageName, skip_task, stage_task, start_run, stop
from flows.ui import show_report
from pipeline.graph import select


@flow(name="full-pipeline", task_runner=ThreadPoolTaskRunner(max_workers=len(GRAPH)))
def full_pipeline(
    recipe: RecipeName = "tiny",
    from_stage: StageName | None = None,
    only: list[StageName] = [],  # noqa: B006  Prefect's form shows the default
    force: bool = False,
    timeout_hours: float | None = None,
) -> State:
    """Run the stages of a recipe, each as soon as its inputs are there. What is up to date is skipped.

    Args:
        recipe: The recipe to run.
        from_stage: Only this stage and all that follow from it.
        only: Only these stages.
        force: Run the chosen stages although they are up to date.
        timeout_hours: End a stage after this time; a training stage saves a checkpoint first.
    """
    selected = select(GRAPH, from_stage, only)
    start_run(recipe)
    unchanged = set() if force else executors.unchanged(GRAPH, selected, recipe)
    futures: dict[str, PrefectFuture] = {}
    try:
        for name in selected:
            inputs = [futures[source] for source in GRAPH[name].inputs if source in futures]
            task = skip_task(name) if name in unchanged else stage_task(name)
            arguments = () if name in unchanged else (force, timeout_hours)
            futures[name] = task.submit(name, recipe, *arguments, wait_for=inputs)
        for future in futures.values():
            future.wait()
    finally:
        stop.set()  # reached early only when the run was cancelled: ends the stages that still run
    return _final_state(recipe, futures)


def _final_state(recipe: str, futures: dict[str, PrefectFuture]) -> State:
    failed = [
        future.state for future in futures.values() if future.state.is_failed() or future.state.is_crashed()
    ]
    if failed:
        sentences = [str(state.result(raise_on_failure=False)) for state in failed]
        return Failed(message="; ".join(sentences))
    if "report" in futures:
        show_report(recipe)
    return Completed(message=f"{len(futures)} stages are up to date")
