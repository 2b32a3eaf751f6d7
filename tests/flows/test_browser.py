"""A stage rerun from the real form in the Prefect UI, with another learning rate, in a headless Chromium."""

import json
import time

import pytest
import yaml
from mlflow import MlflowClient

MILLISECONDS = 240_000  # a machine that is busy draws pages slowly
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def page(chromium):
    page = chromium.new_page(viewport={"width": 1300, "height": 1600})
    page.set_default_timeout(MILLISECONDS)
    yield page
    page.close()


def wait_until(condition, seconds: float = 240.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.5)
    return found


def test_sft_again_from_its_form_with_another_learning_rate(served, page):
    [deployment] = served.api("deployments/filter", deployments={"name": {"any_": ["sft"]}})
    page.goto(f"{served.page}/deployments/deployment/{deployment['id']}/run", wait_until="domcontentloaded")
    page.get_by_text("New learning rate of Muon").wait_for()
    page.get_by_text("float", exact=True).first.click()  # instead of None: the field for a number appears
    page.locator("input[type=number]").first.fill("0.375")
    page.get_by_role("button", name="Submit").click()

    def newest_run():
        [run] = served.api("flow_runs/filter", sort="EXPECTED_START_TIME_DESC", limit=1,
                           deployments={"id": {"any_": [deployment["id"]]}}) or [None]  # fmt: skip
        return run if run and run["parameters"].get("muon_lr") == 0.375 else None

    run = wait_until(newest_run)
    wait_until(lambda: newest_run()["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED"))
    assert newest_run()["state"]["type"] == "COMPLETED", newest_run()["state"]

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
        client = MlflowClient(f"sqlite:///{served.folder}/runs/mlflow.db")
        experiment = client.get_experiment_by_name("glm5 tiny")
        runs = client.search_runs([experiment.experiment_id], f"tags.identity = '{record['identity']}'")
        return client, next((run for run in runs if run.info.status == "FINISHED"), None)

    client, logged = wait_until(lambda: (pair := finished_run())[1] and pair)
    assert logged.data.params["sft.optimizer.muon_lr"] == "0.375"
    assert "mlflow.parentRunId" in logged.data.tags
    assert len(client.get_metric_history(logged.info.run_id, "train/loss")) >= 30
