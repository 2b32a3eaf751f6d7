"""The stage contract and its command line.

A stage is a module with a function ``run(context) -> metrics`` and three lines at its end::

    if __name__ == "__main__":
        run_stage("sft", run)

It reads only the recipe sections and artifacts that ``dvc.yaml`` lists for it, writes one artifact folder,
and is started by DVC, by the flows or by hand: ``python -m tasks.sft --recipe tiny``. A stage whose artifact
already has the identity that this run would have does nothing.
"""

import argparse
import fcntl
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline import artifacts
from pipeline.disk import full_disk_in_one_sentence
from pipeline.errors import UserError, run_command
from pipeline.graph import Stage, load_graph
from pipeline.parent import parents_death
from pipeline.progress import Progress
from pipeline.recipe import Recipe, load_recipe
from pipeline.surroundings import surroundings
from pipeline.tracking import Metrics

METRICS = "metrics.json"
FORCE = "GLM5_FORCE"  # set to 1 by an orchestrator that cannot change a stage's command line
END_WITH_PARENT = "GLM5_END_WITH_PARENT"  # set to 1 by an orchestrator; by hand, a stage outlives its shell
# Tracked files that runs themselves write: no change of the code.
WRITTEN_BY_RUNS = ("params.yaml", "dvc.lock")
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "datasketch", "pydantic")


@dataclass
class Context:
    """What a stage is given."""

    stage: str
    recipe: "Sections"  # ``context.recipe.model``; only sections that dvc.yaml lists
    section: Any  # the stage's own section
    seed: int  # ``data_seed`` for the stages that list it, else ``seed``
    inputs: dict[str, Path]  # verified artifact folder of each input stage
    input_records: dict[str, dict]
    out: Path  # write the payload here; it is published after ``run`` returns
    scratch: Path  # survives a rerun of the same identity
    identity: str
    progress: Progress
    metrics: Metrics
    facts: dict[str, Any] = field(default_factory=dict)  # put into the record: tokens, device, ...


class Sections:
    """The sections of a recipe that a stage may read."""

    def __init__(self, recipe: Recipe, allowed: tuple[str, ...]):
        self._recipe, self._allowed = recipe, allowed
        self.name = recipe.name

    def __getattr__(self, section: str) -> Any:
        if section.startswith("_") or section not in self._allowed:  # pickle asks for "__setstate__"
            raise AttributeError(f"dvc.yaml does not list recipe section {section!r} for this stage")
        return getattr(self._recipe, section)

    def resolved(self) -> dict:
        return {name: _plain(getattr(self._recipe, name)) for name in self._allowed}


def run_stage(name: str, run: Callable[[Context], dict[str, float]]) -> None:
    """The command line of a stage; never returns."""
    parser = argparse.ArgumentParser(prog=f"python -m {load_graph()[name].module}", description=run.__doc__)
    parser.add_argument("--recipe", required=True, help="a name in recipes/ or a path to a recipe file")
    parser.add_argument("--force", action="store_true", help="run although the artifact is up to date")
    arguments = parser.parse_args()
    run_command(lambda: execute(name, run, arguments.recipe, arguments.force))


def execute(
    name: str, run: Callable[[Context], dict[str, float]], recipe_name: str, force: bool = False
) -> None:
    """Run one stage of a recipe unless its artifact is up to date, and publish what it made."""
    stage = load_graph()[name]
    recipe = load_recipe(recipe_name)
    if os.environ.get(END_WITH_PARENT) == "1":
        parents_death(signal.SIGTERM)()  # a killed DVC or Prefect leaves its children alive
    final = artifacts.artifact_dir(recipe.name, name)
    scratch = artifacts.run_dir(recipe.name, name)
    with full_disk_in_one_sentence(name, final.parent, scratch):
        scratch.mkdir(parents=True, exist_ok=True)
        final.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(scratch):
            artifacts.recover(final)
            inputs = {source: artifacts.artifact_dir(recipe.name, source) for source in stage.inputs}
            records = {source: artifacts.verify(folder) for source, folder in inputs.items()}
            _say_what_is_stale(name, recipe, records)
            identity_parts = identity_of(stage, recipe, records)
            identity = artifacts.digest_of(identity_parts)
            force = force or os.environ.get(FORCE) == "1"
            if not force and is_current(final, identity):
                print(f"{name}: up to date", file=sys.stderr)
                return
            _claim_scratch(scratch, identity, force)
            _make(stage, recipe, run, identity_parts, inputs, records)


def _say_what_is_stale(name: str, recipe: Recipe, records: dict[str, dict]) -> None:
    """Inputs are taken as they are; who runs one stage by hand may not know that the recipe has changed."""
    for source, record in records.items():
        then = record.get("sections", {})
        other = [section for section in then if then[section] != _plain(getattr(recipe, section, None))]
        if other:
            keys = ", ".join(other)
            print(
                f"{name}: takes {source} as it is, made with other values of {keys} than the recipe has now",
                file=sys.stderr,
            )


def _make(
    stage: Stage, recipe: Recipe, run: Callable[[Context], dict[str, float]], identity_parts: dict,
    inputs: dict[str, Path], records: dict[str, dict],
) -> None:  # fmt: skip
    """Run the stage into a draft folder and publish it; a failure leaves the old artifact as it was."""
    name, sections, started = stage.name, Sections(recipe, stage.sections), time.time()
    final, scratch = artifacts.artifact_dir(recipe.name, name), artifacts.run_dir(recipe.name, name)
    progress, identity = Progress(scratch, name), artifacts.digest_of(identity_parts)
    draft = final.with_name(f".{name}.draft")
    draft.mkdir()
    metrics = Metrics(scratch, recipe.name, name, identity, sections.resolved(), records)
    context = Context(
        stage=name, recipe=sections, section=getattr(recipe, name, None), seed=_seed(stage, recipe),
        inputs=inputs, input_records=records, out=draft, scratch=scratch, identity=identity,
        progress=progress, metrics=metrics,
    )  # fmt: skip
    try:
        with full_disk_in_one_sentence(name, draft, scratch):  # asked while the draft still fills the disk
            result = run(context)
            (draft / METRICS).write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
            record = artifacts.publish(draft, final, _record(context, identity_parts, result, started))
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        progress.interrupted()
        metrics.close(failed=str(error) or type(error).__name__)
        raise
    progress.finished()
    metrics.finish(record)
    print(f"{name}: done in {record['seconds']:.1f} s -> {final}", file=sys.stderr)


def _seed(stage: Stage, recipe: Recipe) -> int:
    """The seed among the stage's sections: data stages have one of their own."""
    return recipe.seed if "data_seed" not in stage.sections else recipe.data_seed


def identity_of(stage: Stage, recipe: Recipe, records: dict[str, dict]) -> dict:
    """What decides a stage's result: its sections, its inputs' content, for data stages its code, and for the
    stage that reads outside the repository the state of what it reads.
    """
    outside = surroundings(stage, recipe)
    return {
        "stage": stage.name,
        "sections": {name: _plain(getattr(recipe, name)) for name in stage.sections},
        "inputs": {source: record["content"] for source, record in records.items()},
        "code": artifacts.hash_code(stage.code),
        **({"surroundings": outside} if outside else {}),
    }


def is_current(folder: Path, identity: str) -> bool:
    """Whether a finished, undamaged artifact of this identity is there."""
    record = artifacts.read_record(folder)
    if record is None or record["identity"] != identity:
        return False
    try:
        artifacts.verify(folder)
    except UserError:
        return False
    return True


def _record(context: Context, identity_parts: dict, metrics: dict, started: float) -> dict:
    return {
        "stage": context.stage,
        "recipe": context.recipe.name,
        "identity": context.identity,
        **{key: value for key, value in identity_parts.items() if key != "stage"},
        "seed": context.seed,
        "metrics": metrics,
        "facts": context.facts,
        "started": started,  # the process that finished it
        "ended": time.time(),
        "seconds": context.progress.seconds,  # of all processes that worked on it
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "git_commit": git_commit(),
        "host": {"system": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": _package_versions(),
    }


def git_commit() -> str | None:
    """Commit of the working tree, with ``+changes`` when it differs in more than what runs write; None
    outside a repository.
    """
    others = [f":(top,exclude){name}" for name in WRITTEN_BY_RUNS]
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "-uno", "--", ":(top)", *others)
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def _package_versions() -> dict[str, str]:
    versions = {}
    for package in RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


class _only_one:
    """A lock on the scratch folder: two processes of one stage would destroy each other's checkpoints."""

    def __init__(self, scratch: Path):
        self.path = scratch / "lock"

    def __enter__(self) -> None:
        self.file = open(self.path, "w")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is running this stage (it holds {self.path}): wait for it or stop it"
            ) from None

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _claim_scratch(scratch: Path, identity: str, force: bool) -> None:
    """Keep scratch of the same identity (so that a killed run goes on), drop that of any other."""
    owner = scratch / "identity"
    if force or not owner.exists() or owner.read_text(errors="replace") != identity:
        for path in scratch.iterdir():
            if path.name not in ("lock", "log.txt", "cache"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        owner.write_text(identity)  # only here: a full disk must not empty the name on good checkpoints


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
