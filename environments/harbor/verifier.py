"""Judge what an agent left in its sandbox: the tests come in only now, and only they can leave a reward.

Both modes begin alike: every process of the agent is killed, then the task's collect commands run in the
agent's sandbox. What follows depends on ``verifier.environment_mode`` of task.toml:

``separate``  a clean sandbox of the same image receives the artifacts (the work directory where task.toml
              names none), then the tests. Nothing that the agent changed elsewhere is there: /usr, shells,
              interpreters, site-packages, start-up files, PATH. Links that lead out of the work are dropped.
              What is left is the work itself, so tests should not run it with rights over /tests or /logs:
              as nobody, or by a collect command in the agent's sandbox whose output they judge.
``shared``    the tests run in the agent's own sandbox, for tasks whose result cannot be carried. Planted
              tests, stale rewards, processes, variables and user site-packages are gone, but whoever was root
              there may have replaced the interpreter itself: the reward is only as good as that.

The tests see no variable of the agent. A verification that fails on the environment's side has no reward.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from environments.harbor import rewards
from environments.harbor.config import Artifact
from environments.harbor.rewards import Grading, RewardFault
from environments.harbor.task import HarborTask
from environments.harbor.work import MAX_BYTES, WorkLost, put, taken
from environments.sandbox.interface import Backend, Image, Sandbox, SandboxError

# What Harbor always carries beside the declared artifacts.
CONVENTION = Artifact(source="/logs/artifacts")
LOGS = ("agent", "verifier", "artifacts")  # below /logs

# Python neither looks into the current folder nor into a user's packages; git runs nothing that a repository
# asks for and reads no configuration of a user.
ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": "/dev/null",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_CONFIG_KEY_2": "safe.directory",
    "GIT_CONFIG_VALUE_2": "*",
}


async def verify(task: HarborTask, sandbox: Sandbox, image: Image, backend: Backend) -> Grading:
    """The grading of what lies in ``sandbox``, which can only be closed afterwards. Never raises for what the
    agent, the tests or the sandbox did.
    """
    try:
        await sandbox.end_processes()
        await _collect(task, sandbox)
        if not task.config.verifier.separate:
            with tempfile.TemporaryDirectory(prefix="empty-") as empty:
                await sandbox.upload(Path(empty), rewards.FOLDER)
            return await _grade(task, sandbox)
        # Where a watch bounds the disk the work may be beyond it, and would end the clean sandbox's tests.
        most = min(MAX_BYTES, task.limits.disk_mb * 2**20)
        async with taken(sandbox, artifacts(task, image), most) as work:
            async with await backend.start(image, task.limits) as clean:
                await make_folders(clean)
                await put(clean, work)
                return await _grade(task, clean)
    except WorkLost as error:
        return Grading(rewards.LOST_WORK, 0.0, f"the work is lost: {error}")
    except SandboxError as error:
        return Grading(rewards.BROKEN, None, f"the sandbox failed: {error}")


def artifacts(task: HarborTask, image: Image) -> list[Artifact]:
    """What is carried into a clean sandbox."""
    declared = task.config.artifact_paths() or [Artifact(source=work_directory(task, image))]
    return [
        *declared,
        *([] if any(item.source.rstrip("/") == CONVENTION.source for item in declared) else [CONVENTION]),
    ]


def work_directory(task: HarborTask, image: Image) -> str:
    return task.config.environment.workdir or image.workdir


async def make_folders(sandbox: Sandbox) -> None:
    """The folders that every task finds when it starts, for whoever is the image's user."""
    with tempfile.TemporaryDirectory(prefix="logs-") as logs:
        for name in LOGS:
            Path(logs, name).mkdir()
            Path(logs, name).chmod(0o777)
        await sandbox.upload(Path(logs), "/logs")


async def _collect(task: HarborTask, sandbox: Sandbox) -> None:
    """Run the task's collect commands in the agent's sandbox: whatever they leave is a claim of the agent."""
    for item in task.config.verifier.collect:
        await sandbox.run(item.command, seconds=item.timeout_sec, environment=_environment(task, {}))
        await sandbox.end_processes()


async def _grade(task: HarborTask, sandbox: Sandbox) -> Grading:
    verifier = task.config.verifier
    await sandbox.upload(task.tests, "/tests")
    result = await sandbox.run(
        "chmod +x /tests/test.sh && exec /tests/test.sh",
        seconds=verifier.timeout_sec,
        cwd=task.config.environment.workdir,
        environment=_environment(task, verifier.env),
    )
    # What the tests left running could still write a reward.
    await sandbox.end_processes()
    if result.timed_out:
        sentence = f"the tests took longer than {verifier.timeout_sec:g} s"
        return Grading(rewards.TIMEOUT, None, sentence, output=result.output)
    if result.returncode > 128:
        sentence = f"signal {result.returncode - 128} ended the tests"
        return Grading(rewards.KILLED, None, sentence, output=result.output)
    try:
        found = await rewards.read_rewards(sandbox)
    except RewardFault as fault:
        return Grading(fault.outcome, None, str(fault), output=result.output)
    reward = found["reward"]
    reason = "the tests pass" if reward == 1 else f"the tests give {reward:g}"
    return Grading(rewards.GRADED, reward, reason, found, result.output)


def _environment(task: HarborTask, more: Mapping[str, str]) -> dict[str, str]:
    return {**task.variables(task.config.environment.env), **ENVIRONMENT, **task.variables(dict(more))}
