"""A Prefect flow for each stage, to rerun it alone from the UI; and the task that all flows run stages with.

The flows are made from ``dvc.yaml``: ``flows.stage.sft`` is the flow of stage ``sft``. Its deployment is
``sft/sft``, with a form: the recipe, values to change in the recipe file, force.
"""

import os
import threading
import time
from typing import Any, Literal

from prefect import Flow, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.context import get_run_context
from prefect.runtime import flow_run

from flows import executors, server
from flows.executors import Listener, StageFailed
from flows.known_families import refuse_unknown_families
from flows.parameters import override
from flows.ui import ProgressArtifact, show_result
from pipeline.graph import Stage, load_graph
from pipeline.mlflow_sink import PARENT
from pipeline.recipe.load import Recipe, recipe_names

GRAPH = load_graph()  # the forms need its names when Prefect imports this module
RecipeName = Literal[tuple(recipe_names())]
StageName = Literal[tuple(GRAPH)]
# The global concurrency limit of stages that train or sample. No tag: Prefect would ask its server for each.
ACCELERATOR = "accelerator"
SECONDS_OF_LEASE = 60.0  # a killed run gives its place back after this time
RETRIES_AFTER_KILL = 2

stop = threading.Event()  # ends this process's stages; a flow run has its own process


def _was_killed(_task: Any, _run: Any, state: Any) -> bool:
    """Retry a stage whose process was killed; it goes on from its checkpoint. Any other failure is final."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StageFailed) and error.killed


@task(
    cache_policy=NO_CACHE, persist_result=False, retries=RETRIES_AFTER_KILL, retry_delay_seconds=5,
    retry_condition_fn=_was_killed,
)  # fmt: skip
def run_stage(stage: str, recipe: str, force: bool, timeout_hours: float | None) -> dict[str, float]:
    """Run a stage in a child process, its log and progress shown in the UI. Returns its metrics."""
    if not GRAPH[stage].accelerator:
        return _run_shown(GRAPH[stage], recipe, force, timeout_hours)
    with concurrency(ACCELERATOR, lease_duration=SECONDS_OF_LEASE):
        return _run_shown(GRAPH[stage], recipe, force, timeout_hours)


def _run_shown(stage: Stage, recipe: str, force: bool, timeout_hours: float | None) -> dict[str, float]:
    logger = get_run_logger()
    progress = ProgressArtifact(recipe, stage.name)
    listener = Listener(on_line=logger.info, on_tick=progress.update, stop=stop)
    limit = None if timeout_hours is None else timeout_hours * 3600
    first_try = get_run_context().task_run.run_count <= 1
    outcome = executors.run(stage, recipe, force and first_try, listener, limit)
    progress.finish()
    show_result(recipe, outcome)
    return outcome.record["metrics"]


def stage_task(stage: str) -> Any:
    """The task that runs ``stage``, with the stage's name on its node in the UI's graph."""
    return run_stage.with_options(name=stage, task_run_name=stage)


@task(cache_policy=NO_CACHE, persist_result=False)
def skip_stage(stage: str, recipe: str) -> dict[str, float]:
    """Show a stage that DVC found unchanged before the run started. Returns its metrics."""
    outcome = executors.skip(GRAPH[stage], recipe)
    get_run_logger().info("unchanged, says DVC: skipped")
    show_result(recipe, outcome)
    return outcome.record["metrics"]


def skip_task(stage: str) -> Any:
    """The task that stands for ``stage`` in the UI's graph when it has nothing to do."""
    return skip_stage.with_options(name=stage, task_run_name=stage)


def start_run(recipe: str) -> None:
    """Before the first stage of a flow run: whose it is, its name for MLflow, the recipe known to DVC."""
    if server.mark() not in flow_run.tags:  # it was started from a form
        refuse_unknown_families(recipe, GRAPH)
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, tags=[*flow_run.tags, server.mark()])
    os.environ[PARENT] = f"{flow_run.flow_name} {flow_run.name or time.strftime('%H:%M:%S')}"
    for message in executors.prepare(recipe):
        get_run_logger().info(message)


def _run_alone(
    stage: str, recipe: str, overrides: list[str], force: bool, timeout_hours: float | None
) -> dict:
    for message in override(recipe, overrides, stage):
        get_run_logger().info(message)
    start_run(recipe)
    try:
        return stage_task(stage)(stage, recipe, force, timeout_hours)
    finally:
        stop.set()


def _make_flow(stage: str) -> Flow:
    description = GRAPH[stage].description

    def plain(
        recipe: RecipeName = "tiny",
        overrides: list[str] = [],  # noqa: B006  Prefect's form shows the default
        force: bool = False,
        timeout_hours: float | None = None,
    ) -> dict:
        return _run_alone(stage, recipe, overrides, force, timeout_hours)

    def training(
        recipe: RecipeName = "tiny",
        muon_lr: float | None = None,
        adamw_lr: float | None = None,
        overrides: list[str] = [],  # noqa: B006
        force: bool = False,
        timeout_hours: float | None = None,
    ) -> dict:
        rates = {"muon_lr": muon_lr, "adamw_lr": adamw_lr}
        chosen = [f"{stage}.optimizer.{key}={value!r}" for key, value in rates.items() if value is not None]
        return _run_alone(stage, recipe, [*chosen, *overrides], force, timeout_hours)

    function = training if _has_optimizer(stage) else plain
    function.__name__ = stage
    function.__doc__ = f"""Run stage {stage} alone: {description}.

Its inputs are taken as they are; stages that follow from it are not run.

Args:
    recipe: The recipe whose stage runs.
    muon_lr: New learning rate of Muon; empty to keep the recipe's. Written into the recipe file.
    adamw_lr: New learning rate of AdamW; empty to keep the recipe's. Written into the recipe file.
    overrides: More values to write into the recipe file first, each like schedule.final=0.1.
    force: Run although the artifact is up to date.
    timeout_hours: End the stage after this time; a training stage saves a checkpoint first.
"""
    return flow(name=stage)(function)


def _has_optimizer(stage: str) -> bool:
    section = Recipe.model_fields.get(stage)
    return section is not None and "optimizer" in section.annotation.model_fields


def __getattr__(name: str) -> Flow:
    if name not in GRAPH:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    made = _make_flow(name)
    globals()[name] = made
    return made
