"""A miniature repository: real stage modules, a real graph, git and DVC, small enough to run in seconds.

The stages use the real recipe sections but do little: ``collect`` -> ``curate``, ``tokenizer`` -> ``sft`` ->
``report``. ``sft`` counts steps, saves each in its scratch folder and goes on from the last one, as a
training stage does; a test can hold it after a number of steps.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.waiting import PATIENCE, free_port

REPOSITORY = Path(__file__).parents[2]

STAGES = {
    "collect": (["data_seed", "collect"], [], False),
    "curate": (["curate"], ["collect"], False),
    "tokenizer": (["tokenizer"], ["collect"], False),
    "sft": (["seed", "sft"], ["curate", "tokenizer"], True),
    "report": (["report"], ["curate", "sft"], False),
}

SIMPLE = """
import json, os, time
from pathlib import Path
from pipeline.errors import UserError
from pipeline.stage import run_stage


def run(context):
    if context.stage in os.environ.get("MINI_MEET", "").split():  # these stages wait for each other
        Path("here").mkdir(exist_ok=True)
        (Path("here") / context.stage).touch()
        deadline = time.monotonic() + 900
        while not all((Path("here") / name).exists() for name in os.environ["MINI_MEET"].split()):
            assert time.monotonic() < deadline, "the other stages did not come"
            time.sleep(0.05)
    if Path("broken").exists() and Path("broken").read_text().strip() == context.stage:
        raise UserError("documents/0.parquet is cut off: fetch it again")
    values = {{name: json.loads((path / "values.json").read_text()) for name, path in context.inputs.items()}}
    (context.out / "values.json").write_text(json.dumps([context.stage, values]))
    context.progress.update("work", 1, 1, "item")
    return {{"inputs": float(len(values))}}


if __name__ == "__main__":
    run_stage("{name}", run)
"""

TRAINING = """
import json, os, signal, time
from pathlib import Path
from pipeline.stage import run_stage

STEPS = 30


def held(step):
    try:
        return step >= int(Path("hold").read_text())
    except FileNotFoundError:
        return False


def run(context):
    terminated = []
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(1))
    checkpoint = context.scratch / "step.json"
    done = json.loads(checkpoint.read_text()) if checkpoint.exists() else []
    resumed = len(done)
    for step in range(len(done), STEPS):
        while held(step) and not terminated:
            time.sleep(0.02)
        done.append(step * context.section.optimizer.muon_lr)
        checkpoint.with_suffix(".new").write_text(json.dumps(done))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)
        context.metrics.log(step, {"train/loss": 3.0 / (step + 1)})
        context.progress.update("train", step + 1, STEPS, "step")
        if terminated:
            raise SystemExit(143)
    context.facts["resumed"] = resumed
    (context.out / "values.json").write_text(json.dumps(done))
    return {"train/loss": 3.0 / STEPS, "total": sum(done)}


if __name__ == "__main__":
    run_stage("sft", run)
"""


ATTEMPTS = 3

SECONDS_WITH_A_SERVER = 4 * PATIENCE  # the first such test waits for a server, a worker and all stages


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """More time than pyproject.toml gives for tests that use the Prefect server."""
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if "served" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.timeout(SECONDS_WITH_A_SERVER))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The miniature repository, with git and DVC; nothing has run."""
    return make_repository(tmp_path / "repository")


@pytest.fixture
def finished(tmp_path: Path, finished_once: Path) -> Path:
    """The same after a run of all its stages through DVC."""
    return Path(shutil.copytree(finished_once, tmp_path / "repository"))


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The same files without git and DVC; nothing has run."""
    return make_repository(tmp_path / "bare", dvc=False)


@pytest.fixture
def hold() -> Iterator[Callable[[Path, int | None], None]]:
    """``hold(folder, 5)``: stage ``sft`` there does no more than 5 steps, until ``hold(folder, None)``."""
    files = set()

    def change(folder: Path, steps: int | None) -> None:
        file = folder / "hold"
        files.add(file)
        if steps is None:
            file.unlink(missing_ok=True)
        else:
            file.with_suffix(".new").write_text(str(steps))
            file.with_suffix(".new").replace(file)

    yield change
    for file in files:
        file.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory, glm5: "Glm5") -> Path:
    folder = make_repository(tmp_path_factory.mktemp("finished") / "repository")
    done = glm5(folder, "run")
    assert done.returncode == 0 and "5 stages ran, 0 were up to date" in done.stdout, done.stdout
    return folder


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For child processes in a miniature repository."""
    ours = ("GLM5_", "PREFECT_", "MLFLOW_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "DVC_NO_ANALYTICS": "1", "GLM5_MLFLOW": "off"}


Glm5 = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def glm5(environment: dict[str, str]) -> Glm5:
    """``glm5(folder, "run", ...)``: the command in a miniature repository, with what it printed."""

    def call(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments], cwd=folder, env={**environment, **changes},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        )  # fmt: skip

    return call


@dataclass
class Served:
    """A miniature repository whose Prefect server and worker run."""

    folder: Path
    port: int
    environment: dict[str, str]

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def api(self, path: str, **body: object) -> Any:
        """The answer of the server's API to a POST of ``body``.

        503 is what Prefect says while another writer holds its database; its own client asks again, too.
        """
        deadline = time.monotonic() + PATIENCE
        while (
            answer := httpx.post(f"{self.page}/api/{path}", json=body, timeout=PATIENCE)
        ).status_code == 503:
            if time.monotonic() > deadline:
                break
            time.sleep(1)
        answer.raise_for_status()
        return answer.json()

    def pipeline(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess:
        """``glm5 pipeline``, ended, with what it printed."""
        process = self.start(*arguments, **changes)
        output = process.communicate(timeout=3 * PATIENCE)[0]
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "flows.cli", "pipeline", "--port", str(self.port), *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env={**self.environment, **changes}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def process(self, name: str) -> int:
        """Process id of the ``server`` or the ``worker``."""
        return json.loads((self.folder / ".prefect" / f"{name}.json").read_text())["pid"]


@pytest.fixture(scope="session")
def served(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], glm5: Glm5
) -> Iterator[Served]:
    """A repository of which every stage ran through a real Prefect server; it is ended afterwards."""
    folder = make_repository(tmp_path_factory.mktemp("served") / "repository")
    try:
        for _ in range(ATTEMPTS):
            served = Served(folder, free_port(), {**environment, "GLM5_MLFLOW": "on"})
            done = served.pipeline()
            if "the Prefect server ended at once" not in done.stdout:  # it does when its port was taken
                break
        assert done.returncode == 0, done.stdout
        yield served
    finally:
        glm5(folder, "stop")


def make_repository(folder: Path, dvc: bool = True) -> Path:
    """A git (and DVC) repository in ``folder`` with the miniature graph and the recipes of the real one."""
    (folder / "mini").mkdir(parents=True)
    (folder / "mini" / "__init__.py").write_text("")
    for name in STAGES:
        text = TRAINING if name == "sft" else SIMPLE.format(name=name)
        (folder / "mini" / f"{name}.py").write_text(text)
    (folder / "dvc.yaml").write_text(_graph())
    shutil.copytree(REPOSITORY / "recipes", folder / "recipes")
    (folder / "prefect.yaml").write_text(_deployments())
    (folder / "params.yaml").write_text("recipes:\n  tiny: {extends: tiny}\n")
    for name in (".gitignore", ".dvcignore"):
        shutil.copy(REPOSITORY / name, folder / name)
    if dvc:
        _git(folder, "init", "-q")
        shutil.copytree(
            REPOSITORY / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "*.local")
        )
        _git(folder, "add", "-A")
        _git(folder, "commit", "-q", "-m", "start")
    return folder


def _graph() -> str:
    lines = ["stages:"]
    for name, (sections, inputs, accelerator) in STAGES.items():
        lines += [f"  {name}:", "    foreach: ${recipes}", "    do:", f"      desc: the stage {name}"]
        lines += ["      meta: {accelerator: true}"] if accelerator else []
        lines += [f"      cmd: exec python -m mini.{name} --recipe ${{key}}", "      deps:"]
        lines += [f"        - artifacts/${{key}}/{source}" for source in inputs]
        lines += [] if accelerator else [f"        - mini/{name}.py"]
        lines += ["      params:"]
        for file in ("${key}", "${item.extends}"):
            lines.append(f"        - recipes/{file}.yaml: [{', '.join(sections)}]")
        lines += ["      outs:", f"        - artifacts/${{key}}/{name}:", "            persist: true"]
    return "\n".join(lines) + "\n"


def _deployments() -> str:
    """The real ``prefect.yaml`` without the stages that the miniature has not."""
    document = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    kept = {*STAGES, "full-pipeline"}
    document["deployments"] = [entry for entry in document["deployments"] if entry["name"] in kept]
    return yaml.safe_dump(document)


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, timeout=PATIENCE)
