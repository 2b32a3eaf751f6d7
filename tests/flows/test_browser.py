"""A stage rerun from the real form in the Prefect UI, with another learning rate, in a headless Chromium."""

import json

import pytest
import yaml
from mlflow import MlflowClient

from tests.waiting import PATIENCE, wait_until

MILLISECONDS = 1000 * PATIENCE
MILLISECONDS_TO_ANSWER = 120_000  # of the form, then it is filled in again
ATTEMPTS = 4
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def page(chromium):
    page = chromium.new_page(viewport={"width": 1300, "height": 1600})
    page.set_default_timeout(MILLISECONDS)
    yield page
    page.close()


def submit(page, form: str) -> dict:
    """The flow run made by the form at address ``form``, with a learning rate of 0.375.

    Prefect answers 503 while another writer holds its database, and its page draws the form again whenever
    it hears from the server: a click or an entry can be lost on a busy machine. As a person would, try again.
    """
    from playwright.sync_api import TimeoutError as Waited

    for _ in range(ATTEMPTS):
        page.goto(form, wait_until="domcontentloaded")
        page.get_by_text("New learning rate of Muon").wait_for()
        try:
            # Instead of None: the field for a number appears.
            page.get_by_text("float", exact=True).first.click(timeout=MILLISECONDS_TO_ANSWER)
            page.locator("input[type=number]").first.fill("0.375", timeout=MILLISECONDS_TO_ANSWER)
            with page.expect_response(
                lambda answer: answer.url.endswith("/create_flow_run"), timeout=MILLISECONDS_TO_ANSWER
            ) as made:
                page.get_by_role("button", name="Submit").click(timeout=MILLISECONDS_TO_ANSWER)
        except Waited:
            continue
        if made.value.status == 201 and made.value.json()["parameters"].get("muon_lr") == 0.375:
            return made.value.json()
    raise AssertionError(f"no run after {ATTEMPTS} attempts; the page says: {page.inner_text('body')}")


def test_sft_again_from_its_form_with_another_learning_rate(served, page):
    [deployment] = served.api("deployments/filter", deployments={"name": {"any_": ["sft"]}})
    run = submit(page, f"{served.page}/deployments/deployment/{deployment['id']}/run")

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
    record = json.loads((served.folder / "artifacts/tiny/sft/record.json").read_text())
    assert recipe["sft"]["optimizer"]["muon_lr"] == 0.375
    assert lock["stages"]["sft@tiny"]["params"]["recipes/tiny.yaml"]["sft"]["optimizer"]["muon_lr"] == 0.375
    assert record["sections"]["sft"]["optimizer"]["muon_lr"] == 0.375

    # And in MLflow, as a nested run with its curve.
    def finished_run():
        if not (served.folder / "runs/mlflow.db").exists():  # its writer may still be starting
            return None, None
        client = MlflowClient(f"sqlite:///{served.folder}/runs/mlflow.db")
        if (experiment := client.get_experiment_by_name("glm5 tiny")) is None:
            return client, None
        runs = client.search_runs([experiment.experiment_id], f"tags.identity = '{record['identity']}'")
        return client, next((run for run in runs if run.info.status == "FINISHED"), None)

    client, logged = wait_until(lambda: (pair := finished_run())[1] and pair, "the run in MLflow", pause=1.0)
    assert logged.data.params["sft.optimizer.muon_lr"] == "0.375"
    assert "mlflow.parentRunId" in logged.data.tags
    assert len(client.get_metric_history(logged.info.run_id, "train/loss")) >= 30
