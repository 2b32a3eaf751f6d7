"""The flows on a real Prefect server and worker: graph, artifacts, failures, single stages, forms, kill."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from mlflow import MlflowClient
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.states import Running

from flows import server, submit
from pipeline.recipe.load import recipe_names
from tests.flows import form
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def flow_runs(served) -> list[dict]:
    """Newest first."""
    return served.api("flow_runs/filter", sort="EXPECTED_START_TIME_DESC")


def task_runs(served, run: dict) -> dict[str, dict]:
    """By name. The server writes them down from events, which may come after the end of the flow run."""
    found = served.api("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
    return {task["name"]: task for task in found if task["state"]}


def run_stage(served, stage: str, **parameters) -> dict:
    """Run a stage's own deployment to its end, as the UI's form does; the ended flow run."""
    [deployment] = served.api("deployments/filter", deployments={"name": {"any_": [stage]}})
    run = served.api(f"deployments/{deployment['id']}/create_flow_run", parameters=parameters,
                     state={"type": "SCHEDULED"})  # fmt: skip

    def ended() -> dict | None:
        [now] = served.api("flow_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
        return now if now["state"]["type"] in FINAL else None

    return wait_until(ended, "the end of the flow run", pause=0.5)


def record(served, stage: str) -> dict:
    return json.loads((served.folder / "artifacts/tiny" / stage / "record.json").read_text())


def hold_and_start(served, hold, steps: int, *arguments: str) -> subprocess.Popen:
    """``glm5 pipeline`` with stage ``sft`` held after ``steps`` steps, once it has done them."""
    path = served.folder / "runs/tiny/sft/step.json"
    path.unlink(missing_ok=True)  # an earlier run's
    hold(served.folder, steps)
    watch = served.start(*arguments)

    def reached() -> bool:
        assert watch.poll() is None, watch.communicate()[0]
        return path.exists() and len(json.loads(path.read_text())) == steps

    wait_until(reached, f"step {steps}")
    return watch


def test_the_graph_has_named_stages_that_wait_for_their_inputs(served):
    run = flow_runs(served)[-1]
    assert run["state"]["type"] == "COMPLETED"
    assert run["state"]["message"] == "5 stages are up to date"
    stages = {"collect", "curate", "tokenizer", "sft", "report"}
    wait_until(lambda: task_runs(served, run).keys() >= stages, "a task run for every stage")
    tasks = task_runs(served, run)
    assert set(tasks) == stages
    names = {task["id"]: name for name, task in tasks.items()}
    waited = {names[entry["id"]] for entry in tasks["sft"]["task_inputs"]["wait_for"]}
    assert waited == {"curate", "tokenizer"}


def test_each_stage_left_a_result_table_and_progress(served):
    found = {artifact["key"]: artifact for artifact in served.api("artifacts/latest/filter")}
    table = json.loads(found["tiny-sft-result"]["data"])
    rows = {row["name"]: row["value"] for row in table}
    assert rows["identity"] == record(served, "sft")["identity"]
    assert rows["train/loss"] == pytest.approx(0.1)
    assert found["tiny-sft-progress"]["data"] == 100.0
    assert {f"tiny-{stage}-result" for stage in ("collect", "curate", "report")} <= found.keys()


def test_nothing_changed_runs_nothing(served):
    assert served.pipeline().returncode == 0  # another test may have left a stage stale
    before = {stage: record(served, stage) for stage in ("collect", "curate", "tokenizer", "sft", "report")}
    done = served.pipeline()
    assert done.returncode == 0 and "= sft: up to date" in done.stdout, done.stdout
    assert {stage: record(served, stage) for stage in before} == before


def test_the_form_of_a_stage_offers_recipes_and_learning_rates(served):
    [deployment] = served.api("deployments/filter", deployments={"name": {"any_": ["sft"]}})
    fields = deployment["parameter_openapi_schema"]["properties"]
    assert fields["recipe"]["enum"] == recipe_names() and fields["recipe"]["default"] == "tiny"
    assert {"muon_lr", "adamw_lr", "overrides", "force", "timeout_hours"} <= fields.keys()
    assert "Written into the recipe file" in fields["muon_lr"]["description"]
    [whole] = served.api("deployments/filter", deployments={"name": {"any_": ["full-pipeline"]}})
    fields = whole["parameter_openapi_schema"]["properties"]
    assert fields["only"]["items"]["enum"] == ["collect", "curate", "tokenizer", "sft", "report"]


def test_a_stage_alone_with_another_learning_rate(served):
    curated = record(served, "curate")
    run = run_stage(served, "sft", recipe="tiny", muon_lr=0.75)
    assert run["state"]["type"] == "COMPLETED", run["state"]
    recipe = yaml.safe_load((served.folder / "recipes/tiny.yaml").read_text())
    lock = yaml.safe_load((served.folder / "dvc.lock").read_text())
    assert recipe["sft"]["optimizer"]["muon_lr"] == 0.75
    assert lock["stages"]["sft@tiny"]["params"]["recipes/tiny.yaml"]["sft"]["optimizer"]["muon_lr"] == 0.75
    assert record(served, "sft")["sections"]["sft"]["optimizer"]["muon_lr"] == 0.75
    assert record(served, "curate") == curated
    wrong = run_stage(served, "sft", recipe="tiny", overrides=["optimizer.muon_rl=1"])
    assert wrong["state"]["type"] == "FAILED" and "did you mean 'muon_lr'?" in wrong["state"]["message"]


def test_a_failed_stage_shows_its_own_error(served):
    (served.folder / "broken").write_text("curate")
    try:
        done = served.pipeline("--from", "curate", "--force")
    finally:
        (served.folder / "broken").unlink()
    assert done.returncode == 1
    sentence = "curate: documents/0.parquet is cut off: fetch it again"
    assert f"! error: {sentence}" in done.stdout
    run = flow_runs(served)[0]
    assert run["state"]["type"] == "FAILED" and run["state"]["message"] == sentence

    def states() -> dict[str, str]:
        return {name: task["state"]["name"] for name, task in task_runs(served, run).items()}

    wait_until(lambda: (states().get("curate"), states().get("sft")) == ("Failed", "NotReady"), "the states")
    assert sentence in task_runs(served, run)["curate"]["state"]["message"]


@pytest.mark.parametrize("victims", [["worker"], ["server", "worker"], ["stage"]])
def test_kill_9_then_the_next_run_goes_on_to_the_same_result(served, victims, hold):
    rate = {"worker": 0.11, "server": 0.12, "stage": 0.13}[victims[0]]
    watch = hold_and_start(served, hold, 3, "--set", f"sft.optimizer.muon_lr={rate}", "sft")
    for victim in victims:
        os.kill(_stage_process(served) if victim == "stage" else served.process(victim), signal.SIGKILL)
    hold(served.folder, None)
    output = watch.communicate(timeout=PATIENCE)[0]
    if victims == ["stage"]:  # Prefect tries it again by itself
        assert watch.returncode == 0, output
    done = served.pipeline("sft")
    assert done.returncode == 0, output + done.stdout
    values = json.loads((served.folder / "artifacts/tiny/sft/values.json").read_text())
    assert values == [step * rate for step in range(30)]
    if victims == ["stage"]:  # the stage outlives worker and server, and finishes what it began
        assert record(served, "sft")["facts"]["resumed"] == 3
    assert flow_runs(served)[0]["state"]["type"] == "COMPLETED"


def _stage_process(served) -> int | None:
    """Number of the process that runs stage ``sft``."""
    for line in subprocess.check_output(["ps", "-eo", "pid,args"], text=True).splitlines():
        number, _, command = line.strip().partition(" ")
        if command.endswith("-m mini.sft --recipe tiny") and "dvc" not in command:
            with contextlib.suppress(OSError):  # it ended in the meantime
                if os.readlink(f"/proc/{number}/cwd") == str(served.folder):
                    return int(number)
    return None


def test_a_cancelled_run_ends_its_stage(served, hold):
    watch = hold_and_start(served, hold, 2, "--set", "sft.optimizer.muon_lr=0.2", "sft")
    watch.send_signal(signal.SIGINT)
    output = watch.communicate(timeout=PATIENCE)[0]
    assert watch.returncode == 130 and "cancelling the run" in output
    wait_until(lambda: flow_runs(served)[0]["state"]["type"] == "CANCELLED", "the state", pause=0.5)
    wait_until(lambda: _stage_process(served) is None, "the end of the stage", pause=0.5)
    assert len(json.loads((served.folder / "runs/tiny/sft/step.json").read_text())) < 30


def test_only_dead_runs_of_this_clone_and_host_are_closed(served, monkeypatch):
    monkeypatch.chdir(served.folder)
    mine, host = server.mark(), socket.gethostname()
    dead = int(Path("/proc/sys/kernel/pid_max").read_text())  # processes have lower numbers
    cases = {
        "dead": ([mine], f"{host}:{dead}"),
        "alive": ([mine], f"{host}:{os.getpid()}"),
        "other-host": ([mine], f"elsewhere:{dead}"),
        "other-clone": ([f"{host}:/another/clone"], f"{host}:{dead}"),
        "unmarked": ([], f"{host}:{dead}"),
    }
    flow = flow_runs(served)[0]["flow_id"]
    made = {}
    with SyncPrefectClient(f"{served.page}/api") as client:
        for name, (tags, infrastructure) in cases.items():
            run = served.api("flow_runs/", flow_id=flow, name=name, tags=tags)
            made[name] = UUID(run["id"])
            client.update_flow_run(made[name], infrastructure_pid=infrastructure)
            client.set_flow_run_state(made[name], Running(), force=True)
        try:
            assert set(submit.close_dead_runs(client)) & cases.keys() == {"dead"}
            states = {name: client.read_flow_run(number).state.type.value for name, number in made.items()}
            assert states == dict.fromkeys(cases, "RUNNING") | {"dead": "CRASHED"}
        finally:
            for number in made.values():
                client.delete_flow_run(number)
    [watched, *_] = [run for run in flow_runs(served) if run["deployment_id"]]
    assert mine in watched["tags"]


def test_a_run_from_a_form_is_marked_as_this_clone_s(served):
    run = run_stage(served, "collect", recipe="tiny")
    assert f"{socket.gethostname()}:{served.folder}" in run["tags"], run["tags"]


def test_a_limit_that_was_raised_stays(served):
    with SyncPrefectClient(f"{served.page}/api") as client:
        assert client.read_global_concurrency_limit_by_name("accelerator").limit == 1
        client.update_global_concurrency_limit("accelerator", GlobalConcurrencyLimitUpdate(limit=3))
        submit.ensure_limit(client)
        assert client.read_global_concurrency_limit_by_name("accelerator").limit == 3
        client.delete_global_concurrency_limit_by_name("accelerator")
        submit.ensure_limit(client)
        assert client.read_global_concurrency_limit_by_name("accelerator").limit == 1


def test_a_worker_of_another_server_is_not_taken_for_one_of_this(served):
    worker = served.process("worker")
    other = "http://127.0.0.1:1/api"
    done = served.pipeline(PREFECT_API_URL=other)
    assert done.returncode == 1 and "Traceback" not in done.stdout, done.stdout
    assert f"worker asks the server at {served.page}/api for work and not the one at {other}" in done.stdout
    assert served.process("worker") == worker


def test_a_port_that_is_taken_is_one_sentence(bare, environment):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "flows.cli", "pipeline", "--port", str(port)]
        done = subprocess.run(
            command, cwd=bare, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    assert done.returncode == 1
    assert f"error: port {port} of 127.0.0.1 is taken by another program" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def page(chromium):
    page = chromium.new_page(viewport={"width": 1300, "height": 1600})
    page.set_default_timeout(form.MILLISECONDS)
    yield page
    page.close()


@pytest.mark.browser
def test_sft_again_from_its_form_with_another_learning_rate(served, page):
    """Last: while playwright drives a browser, nothing else in this process can run an event loop."""
    [deployment] = served.api("deployments/filter", deployments={"name": {"any_": ["sft"]}})
    run = form.submit(page, f"{served.page}/deployments/deployment/{deployment['id']}/run")

    def state():
        return served.api("flow_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})[0]["state"]

    wait_until(lambda: state()["type"] in ("COMPLETED", "FAILED", "CRASHED"), "the end of the run", pause=0.5)
    assert state()["type"] == "COMPLETED", state()

    # The page of the run shows the stage by name, its end and its result.
    page.goto(f"{served.page}/runs/flow-run/{run['id']}", wait_until="domcontentloaded")
    page.get_by_text("Completed").first.wait_for()
    page.get_by_text("sft", exact=True).first.wait_for()

    # What ran is on disk: in the recipe, in dvc.lock and in the artifact.
    recipe = yaml.safe_load((served.folder / "recipes/tiny.yaml").read_text())
    lock = yaml.safe_load((served.folder / "dvc.lock").read_text())
    assert recipe["sft"]["optimizer"]["muon_lr"] == 0.375
    assert lock["stages"]["sft@tiny"]["params"]["recipes/tiny.yaml"]["sft"]["optimizer"]["muon_lr"] == 0.375
    assert record(served, "sft")["sections"]["sft"]["optimizer"]["muon_lr"] == 0.375

    # And in MLflow, as a nested run with its curve.
    identity = record(served, "sft")["identity"]

    def finished_run():
        if not (served.folder / "runs/mlflow.db").exists():  # its writer may still be starting
            return None, None
        client = MlflowClient(f"sqlite:///{served.folder}/runs/mlflow.db")
        if (experiment := client.get_experiment_by_name("glm5 tiny")) is None:
            return client, None
        runs = client.search_runs([experiment.experiment_id], f"tags.identity = '{identity}'")
        return client, next((run for run in runs if run.info.status == "FINISHED"), None)

    client, logged = wait_until(lambda: (pair := finished_run())[1] and pair, "the run in MLflow", pause=1.0)
    assert logged.data.params["sft.optimizer.muon_lr"] == "0.375"
    assert "mlflow.parentRunId" in logged.data.tags
    assert len(client.get_metric_history(logged.info.run_id, "train/loss")) >= 30
