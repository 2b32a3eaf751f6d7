"""The real Harbor, in the environment of `make harbor`, reads and runs what is made here.

Ten terminal tasks are drawn; ``HARBOR_TASKS`` names a folder of tasks to take instead, all of which are
loaded and the first ten of which are run.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from data_pipelines.task_building.terminal import catalog
from environments.harbor.config import read_config
from environments.harbor.environment import HarborTasks
from environments.harbor.task import load_tasks
from environments.interface import Verdict, play
from environments.trajectory import Trajectory
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-harbor/bin/python"
RUN = 10
SECONDS = 3 * PATIENCE

pytestmark = [
    pytest.mark.harbor,
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS + PATIENCE),
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment with Harbor: `make harbor`"),
]
ENVIRONMENT = "environments.adapters.harbor_environment:SandboxEnvironment"
LOAD = """\
import sys
from pathlib import Path
from harbor.models.task.task import Task
for folder in sorted(Path(sys.argv[1]).iterdir()):
    task = Task(folder)
    print(task.name, len(task.instruction.strip()))
"""
CONFIG = """\
from harbor.models.task.config import *
machine = EnvironmentConfig(
    cpus=2.5, memory_mb=5, storage_mb=6, gpus=1, gpu_types=["A"], tpu=TpuSpec(type="v4", topology="2x2"),
    mcp_servers=[MCPServerConfig(name="m", url="http://x")], healthcheck=HealthcheckConfig(command="true"),
    workdir="/x", skills_dir="/s", env={"A": "b"}, docker_image="i", network_mode="no-network",
)
verifier = VerifierConfig(env={"A": "b"}, collect=[VerifierCollectConfig(command="x")], environment=machine)
agent = AgentConfig(timeout_sec=3, network_mode="allowlist", allowed_hosts=["x.org"], user="u")
files = [ArtifactConfig(source="/b", destination="c", exclude=["d"], service="main")]
step = StepConfig(name="one", agent=agent, verifier=verifier, min_reward={"reward": 0.5}, artifacts=["/z"])
package = PackageInfo(name="a/b", version="1", authors=[Author(name="x", email="y")], keywords=["k"])
print(TaskConfig(
    task=package, metadata={"a": [1]}, verifier=verifier, agent=agent, environment=machine, artifacts=files,
    solution=SolutionConfig(env={"A": "b"}), steps=[step], multi_step_reward_strategy="mean", source="s",
).model_dump_toml())
"""
TRAJECTORY = """\
import sys
from pathlib import Path
from harbor.models.trajectories.trajectory import Trajectory
trajectory = Trajectory.model_validate_json(Path(sys.argv[1]).read_text())
print(len(trajectory.steps), sum(len(step.tool_calls or ()) for step in trajectory.steps))
"""


def harbor(*arguments: str, cache: Path) -> str:
    variables = {
        **os.environ, "PYTHONPATH": str(ROOT), "GLM5_ROOT": str(cache),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it looks for one on the network
    }  # fmt: skip
    done = subprocess.run(
        [PYTHON, *arguments], env=variables, cwd=cache, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of Harbor tasks."""
    if given := os.environ.get("HARBOR_TASKS"):
        return Path(given).resolve()
    tasks = tmp_path_factory.mktemp("drawn") / "tasks"
    for family in list(catalog.FAMILIES)[:: len(catalog.FAMILIES) // RUN][:RUN]:
        candidate = catalog.scripted(family, 7)
        (tasks / candidate.name).mkdir(parents=True)
        candidate.write(tasks / candidate.name)
    return tasks


def test_harbor_reads_what_we_read(folder, tmp_path):
    tasks, faults = load_tasks(folder)
    assert len(tasks) >= RUN and not faults
    shown = dict(line.split() for line in harbor("-c", LOAD, str(folder), cache=tmp_path).splitlines())
    assert shown == {task.name: str(len(task.instruction)) for task in tasks}


def test_every_key_that_harbor_writes_is_known(tmp_path):
    config = read_config(harbor("-c", CONFIG, cache=tmp_path), "task.toml")
    assert config.steps[0].verifier.environment.tpu.topology == "2x2"
    assert config.artifact_paths()[0].exclude == ["d"] and config.agent.allowed_hosts == ["x.org"]


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_harbor_gives_the_same_rewards(folder, tmp_path, agent, reward):
    chosen = tmp_path / "tasks"
    chosen.mkdir()
    for task in load_tasks(folder)[0][:RUN]:
        (chosen / task.folder.name).symlink_to(task.folder)
    harbor(
        str(PYTHON.with_name("harbor")), "run", "-p", str(chosen), "-a", agent, "-e", ENVIRONMENT,
        "-n", "2", "-y", "-o", str(tmp_path / "jobs"), "--job-name", agent, cache=tmp_path,
    )  # fmt: skip
    results = [
        json.loads(path.read_text()) for path in sorted((tmp_path / "jobs" / agent).glob("*/result.json"))
    ]
    assert len(results) == RUN
    rewards = {result["task_name"]: (result["verifier_result"] or {}).get("rewards") for result in results}
    assert set(map(str, rewards.values())) == {str({"reward": reward})}, rewards
    assert all(result["exception_info"] is None for result in results)


def test_our_trajectory_is_harbors(write_task, tmp_path, bubblewrap):
    environment = HarborTasks(write_task().parent, bubblewrap)
    [task] = environment.tasks()
    messages, verdict = asyncio.run(play(environment, task, environment.oracle(task, "interleaved")))
    assert verdict == Verdict(1.0, "the tests pass")
    path = tmp_path / "trajectory.json"
    path.write_text(Trajectory.of_dialogue(task, messages, verdict, agent="oracle", session="s").to_json())
    assert harbor("-c", TRAJECTORY, str(path), cache=tmp_path).split() == ["3", "2"]
