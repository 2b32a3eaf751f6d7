"""Run the full pipeline through Prefect and show it in the terminal: what ``make pipeline`` does."""

import contextlib
import os
import socket
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelling, Crashed
from prefect.workers.process import ProcessWorker

from flows import server
from flows.terminal import View
from pipeline import artifacts
from pipeline.errors import UserError

DEPLOYMENT = "full-pipeline/full-pipeline"
ACCELERATOR = "accelerator"  # as flows.stage names it
ACCELERATORS = 1  # stages that train or sample at the same time on this machine
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_QUESTIONS = 0.2
NICENESS = 10  # of deploying the single stages while the run begins
SECONDS_WITHOUT_SERVER = 20.0
SECONDS_FOR_LATE_EVENTS = 30.0
SERVICE_UNAVAILABLE = 503  # the server is there and another writer holds its database
SERVER_GONE = (
    "the Prefect server does not answer any more: `make pipeline` starts it again and goes on; "
    "what was finished is kept"
)


def prepare(view: View, starting: server.Starting) -> None:
    """What a run needs of the server: work pool, limit, deployments, and no run that died unseen.

    Raises ``UserError`` when the server does not answer, as one that ``PREFECT_API_URL`` names may not.
    """
    try:
        _prepare(view, starting)
    except httpx.TransportError as error:
        mend = f"see {server.log_of('server')}" if starting.own else "start it, or unset PREFECT_API_URL"
        raise UserError(f"the Prefect server at {starting.api} does not answer ({error}): {mend}") from None


def _prepare(view: View, starting: server.Starting) -> None:
    with get_client(sync_client=True) as client:
        template = ProcessWorker.get_default_base_job_template()
        pool = WorkPoolCreate(name=server.POOL, type="process", base_job_template=template)
        try:
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            pass
        ensure_limit(client)
        for name in close_dead_runs(client):
            view.say(f"flow run {name} had died; its finished stages are kept")
        _deploy(client, view, starting)


def _deploy(client: SyncPrefectClient, view: View, starting: server.Starting) -> None:
    """Wait for the deployment that is about to run; those of single stages are made while it runs."""
    if starting.deploying is None:
        return
    view.say("deploying prefect.yaml")
    since = datetime.now(UTC)
    starting.deploy()
    while starting.deploying.poll() is None:
        with contextlib.suppress(ObjectNotFound):
            if client.read_deployment_by_name(DEPLOYMENT).updated >= since:
                psutil.Process(starting.deploying.pid).nice(NICENESS)
                return
        time.sleep(SECONDS_BETWEEN_QUESTIONS)
    starting.deployed()


def ensure_limit(client: SyncPrefectClient) -> None:
    """Make the limit of stages that train side by side; one that is there was perhaps changed in the UI."""
    try:
        client.read_global_concurrency_limit_by_name(ACCELERATOR)
    except ObjectNotFound:
        limit = GlobalConcurrencyLimitCreate(name=ACCELERATOR, limit=ACCELERATORS)
        client.create_global_concurrency_limit(limit)


def close_dead_runs(client: SyncPrefectClient) -> list[str]:
    """Mark as crashed this clone's runs on this machine whose process is gone: nothing else ever would."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING]))
    mine = FlowRunFilter(state=states, tags=FlowRunFilterTags(all_=[server.mark()]))
    closed = []
    for run in client.read_flow_runs(flow_run_filter=mine):
        host, _, number = (run.infrastructure_pid or "").rpartition(":")
        if host in ("", socket.gethostname()) and number.isdigit() and not psutil.pid_exists(int(number)):
            client.set_flow_run_state(run.id, Crashed(message="its process is gone"), force=True)
            closed.append(run.name)
    return closed


def run_and_watch(parameters: dict[str, Any], view: View) -> int:
    """Submit the full pipeline, follow it to its end and return the exit status."""
    since = time.time()
    run = run_deployment(DEPLOYMENT, parameters=parameters, timeout=0, tags=[server.mark()])
    page = os.environ["PREFECT_API_URL"].removesuffix("/api")
    view.say(f"run {run.name}: {page}/runs/flow-run/{run.id}")
    seen: dict[str, StateType] = {}
    answered = time.monotonic()
    with get_client(sync_client=True) as client:
        try:
            while True:
                try:
                    run = client.read_flow_run(run.id)
                    _show_stages(client, run, seen, view, since)
                    answered = time.monotonic()
                except httpx.TransportError:
                    if time.monotonic() - answered > SECONDS_WITHOUT_SERVER:
                        raise UserError(SERVER_GONE) from None
                except PrefectHTTPStatusError as error:
                    if error.response.status_code != SERVICE_UNAVAILABLE:
                        raise
                if run.state.is_final():
                    _show_late_stages(client, run, seen, view, since)
                    return _conclude(run, view, time.time() - since)
                if run.state.is_scheduled() and server.ensure_worker():
                    view.say("started the worker again")
                _tick_until(view, time.monotonic() + SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            client.set_flow_run_state(run.id, Cancelling())
            view.say("cancelling the run: training stages save a checkpoint; what was finished is kept")
            return 130


def _show_stages(
    client: SyncPrefectClient, run: FlowRun, seen: dict[str, StateType], view: View, since: float
) -> None:
    mine = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run.id]))
    for task in client.read_task_runs(task_run_filter=mine):
        if task.state is not None and seen.get(task.name) != task.state.type:
            seen[task.name] = task.state.type
            _show_stage(task, view, since)


def _show_late_stages(
    client: SyncPrefectClient, run: FlowRun, seen: dict[str, StateType], view: View, since: float
) -> None:
    """The server writes task runs down from events, which may come after the end of the flow run."""
    deadline = time.monotonic() + SECONDS_FOR_LATE_EVENTS
    with contextlib.suppress(httpx.HTTPError):  # they are shown, nothing depends on them
        while not _all_told(run, set(seen.values())) and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            _show_stages(client, run, seen, view, since)


def _all_told(run: FlowRun, states: set[StateType]) -> bool:
    if run.state.is_failed() and not states & {StateType.FAILED, StateType.CRASHED}:
        return False
    # Stages of a run that was ended from outside stay "running" for ever.
    return run.state.is_crashed() or run.state.is_cancelled() or StateType.RUNNING not in states


def _show_stage(task: TaskRun, view: View, since: float) -> None:
    if task.state.is_running():
        view.started(task.name)
    elif task.state.is_completed():
        record = artifacts.read_record(artifacts.artifact_dir(view.recipe, task.name))
        if record is None or record["started"] < since:
            view.skipped(task.name)
        else:
            view.finished(task.name, record)
    elif task.state.is_failed() or task.state.is_crashed():
        message = task.state.message or task.state.name
        view.failed(task.name, message.rpartition("StageFailed: ")[2])


def _conclude(run: FlowRun, view: View, seconds: float) -> int:
    view.say(f"{run.state.name}: {run.state.message or 'no message'} ({seconds:.0f} s)")
    page = artifacts.artifact_dir(view.recipe, "report") / "report.html"
    if run.state.is_completed():
        if page.exists():
            view.say(f"report: {page}")
        return 0
    view.say(f"log of the run: {server.log_of('worker')}")
    return 1


def _tick_until(view: View, end: float) -> None:
    while time.monotonic() < end:
        view.tick()
        time.sleep(0.25)
