"""Put the released checkpoint of a recipe into MLflow's model registry: ``glm5 release --recipe tiny``.

Released is what the report's card is about: the last checkpoint of the graph. Its files, its record and the
card, as ``README.md``, become a version of the registered model ``glm5-<recipe>`` with the alias
``released``. They are copied into MLflow's store, so that a version stays whatever becomes of
``artifacts/``. Released again with nothing changed it stays the same version.
"""

import argparse
import importlib.util
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline import artifacts
from pipeline.disk import full_disk_in_one_sentence
from pipeline.errors import UserError, run_command
from pipeline.mlflow_sink import SQLITE, open_sqlite, tracking_uri

ALIAS = "released"
DIGEST = "glm5.release"  # tag of a version: what was released, card and all
CARD = "model_card.md"
FOLDER = "model"  # in the run's artifacts


@dataclass(frozen=True)
class Release:
    """A checkpoint with its record, and the card that the report wrote of it."""

    recipe: str
    stage: str
    folder: Path
    record: dict
    card: str
    scores: dict[str, float]  # of the evaluation, by name

    @property
    def name(self) -> str:
        return f"glm5-{self.recipe}"

    @property
    def digest(self) -> str:
        return artifacts.digest_of([self.record["content"], self.card])


def find(recipe: str) -> Release:
    """What the recipe's report describes. Raises ``UserError`` where that is no longer what is there."""
    report = artifacts.artifact_dir(recipe, "report")
    facts = artifacts.verify(report)["facts"]
    if "released" not in facts:
        raise UserError(f"{report} is about no checkpoint: run stage report again once one is trained")
    folder = artifacts.artifact_dir(recipe, facts["released"])
    record = artifacts.verify(folder)
    if record["content"] != facts["content"]:
        raise UserError(f"{report / CARD} was written of another {folder}: run stage report again")
    evaluation = artifacts.read_record(artifacts.artifact_dir(recipe, "evaluate")) or {}
    prefix = f"eval/{facts['released']}/"
    scores = {n: v for n, v in evaluation.get("metrics", {}).items() if n.startswith(prefix)}
    return Release(
        recipe, facts["released"], folder, record, (report / CARD).read_text(encoding="utf-8"), scores
    )


def register(release: Release) -> tuple[str, bool]:
    """The version that the alias stands for now, and whether it is new."""
    from mlflow import MlflowClient

    from pipeline.mlflow_mirror import make_database, one_at_a_time

    uri, place = tracking_uri(), _place(release)
    with _sentences(uri), full_disk_in_one_sentence("release", Path(place["runs"])):
        with one_at_a_time(place):
            make_database()
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        if not client.search_registered_models(f"name = '{release.name}'"):
            about = f"Recipe {release.recipe} of glm5-pipeline; a version is a checkpoint with its card."
            client.create_registered_model(release.name, description=about)
        known = client.search_model_versions(f"name = '{release.name}'")
        same = [version.version for version in known if version.tags.get(DIGEST) == release.digest]
        version = same[0] if same else _add(client, release)
        client.set_registered_model_alias(release.name, ALIAS, version)
    return str(version), not same


def _add(client, release: Release) -> str:
    """A run with the files, and the version that is made of them."""
    from pipeline.mlflow_mirror import experiment_of, one_at_a_time

    place = _place(release)
    with one_at_a_time(place):
        number = experiment_of(client, place)
    tags = {
        DIGEST: release.digest, "recipe": release.recipe, "stage": release.stage,
        "identity": release.record["identity"], "content": release.record["content"],
        "mlflow.source.git.commit": release.record.get("git_commit") or "unknown",
    }  # fmt: skip
    run = client.create_run(number, run_name=f"release {release.stage}", tags=tags)
    status = "FAILED"
    try:
        for name, value in release.scores.items():
            client.log_metric(run.info.run_id, name, value)
        with tempfile.TemporaryDirectory(dir=place["runs"]) as scratch:
            # Beside one another, as somebody who downloads the version should find them.
            folder = Path(scratch) / FOLDER
            shutil.copytree(release.folder, folder, copy_function=_link)
            (folder / "README.md").write_text(release.card, encoding="utf-8")
            client.log_artifacts(run.info.run_id, str(folder), FOLDER)
        source = f"{run.info.artifact_uri}/{FOLDER}"
        about = _without_front_matter(release.card)
        made = client.create_model_version(
            release.name, source, run.info.run_id, tags=tags, description=about
        )
        status = "FINISHED"
    finally:
        client.set_terminated(run.info.run_id, status)
    return made.version


def _without_front_matter(card: str) -> str:
    """The card as a person reads it: its YAML is meant for a hub, and MLflow's page would show it as text."""
    front, end, text = card.partition("\n---\n")
    return text.lstrip("\n") if front.startswith("---\n") and end else card


def _place(release: Release) -> dict[str, str]:
    return {"recipe": release.recipe, "runs": str((artifacts.root() / "runs").absolute())}


def _link(source: str, target: str) -> None:
    """A name for the same file where the disk allows it: a checkpoint may be large."""
    try:
        Path(target).hardlink_to(Path(source).resolve())
    except OSError:
        shutil.copy2(source, target)


@contextmanager
def _sentences(uri: str) -> Iterator[None]:
    """One sentence for a store that cannot be reached or written."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        open_sqlite(uri)
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        reason = str(error).partition("\n")[0][:300]
        mend = "start it or set MLFLOW_TRACKING_URI"
        if uri.startswith(SQLITE):
            mend = "end what keeps it locked, move it away where it is damaged, or set MLFLOW_TRACKING_URI"
        raise UserError(
            f"MLflow at {uri} did not take the release ({reason}): {mend}; then release again"
        ) from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.mlflow_registry", description=__doc__)
    parser.add_argument("--recipe", required=True)
    arguments = parser.parse_args()
    run_command(lambda: _release(arguments.recipe))


def _release(recipe: str) -> None:
    if importlib.util.find_spec("mlflow") is None:
        raise UserError("MLflow is not installed: `make pipeline` installs it")
    release = find(recipe)
    version, new = register(release)
    said = "is now" if new else "was released before and stays"
    print(f"{release.folder} {said} version {version} of {release.name}, alias {ALIAS}, in {tracking_uri()}")


if __name__ == "__main__":
    main()
