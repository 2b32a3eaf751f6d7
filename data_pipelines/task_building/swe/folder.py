"""The Harbor folder of a fix task: https://harborframework.com, schema 1.4. It needs nothing of ours."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import tomlkit

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe.project import Project
from data_pipelines.task_building.swe.running import GRADER, SECONDS, image_lines, tests_json
from environments.swe.history import faults, freshen
from environments.swe.patches import changed_lines

AGENT_SECONDS = 1800
VERIFIER_SECONDS = 2 * SECONDS + 60  # the tests that hold run twice
BUILD_SECONDS = 600
EASY, MEDIUM = 6, 30  # lines that a fix of that difficulty changes, at most

TEST_SH = """\
#!/bin/bash
# Leaves 1 in /logs/verifier/reward.txt when the tests to repair and those to keep hold, else 0.
# The braces make bash read all of it before anything that was delivered runs.
{
    set -uo pipefail
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    unset BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH
    cd /
    mkdir -p /logs/verifier
    rm -rf /logs/verifier/reward.txt
    echo 0 > /logs/verifier/reward.txt
    before=" $(echo /proc/[0-9]*) "
    if ! python3 -I -S /tests/grade.py; then
        # What was graded ended the grader: its processes go, so that none leaves a reward after this.
        for round in {1..50}; do
            left=
            for process in /proc/[0-9]*; do
                [[ $before == *" $process "* ]] && continue
                kill -KILL "${process#/proc/}" 2> /dev/null && left=1
            done
            [ -z "$left" ] && break
        done
        rm -rf /logs/verifier/reward.txt
        echo 0 > /logs/verifier/reward.txt
    fi
    # It would win over reward.txt, and the grader does not write it.
    rm -rf /logs/verifier/reward.json
    exit 0
}
"""
SOLVE_SH = """\
#!/bin/bash
# The fix, as the project itself made it.
set -euo pipefail
cd {workdir}
git apply --whitespace=nowarn "$(dirname "$0")/gold.patch"
"""


def write_folder(
    folder: Path,
    project: Project,
    tree: Path,
    changes: Mapping[str, str | None],
    instruction: str,
    fix: str,
    tests: bytes,
    repair: list[str],
    keep: list[str],
    name: str,
    metadata: Mapping[str, object],
) -> None:
    """Write the task. The agent gets ``tree`` with ``changes`` (None removes a file), ``fix`` solves it.

    Raises ``Rejected`` where the agent's copy would show the fix.
    """
    copy = folder / "environment/project"
    shutil.copytree(tree, copy)
    for path, text in changes.items():
        if text is None:
            (copy / path).unlink(missing_ok=True)
        else:
            (copy / path).write_text(text, encoding="utf-8")
    freshen(copy)
    if found := faults(copy, fix):
        raise Rejected(f"the fix can be read: {found[0]}")
    # Beside the project: data versioning and other tools pass over folders of that name.
    (copy / ".git").rename(folder / "environment/git")
    _write(
        folder / "environment/Dockerfile",
        f"{image_lines(project)}COPY project {project.workdir}\nCOPY git {project.workdir}/.git\n"
        f"WORKDIR {project.workdir}\n",
    )
    _write(folder / "instruction.md", instruction)
    _write(folder / "task.toml", _task_toml(project, name, {"difficulty": difficulty(fix), **metadata}))
    _write(folder / "solution/gold.patch", fix)
    _write(folder / "solution/solve.sh", SOLVE_SH.format(workdir=project.workdir), 0o755)
    _write(folder / "tests/test.sh", TEST_SH, 0o755)
    _write(folder / "tests/tests.json", json.dumps(tests_json(project, repair, keep), indent=1) + "\n")
    (folder / "tests/files.tar.gz").write_bytes(tests)
    shutil.copyfile(GRADER, folder / "tests/grade.py")


def difficulty(fix: str) -> str:
    """By the lines that the fix changes."""
    lines = changed_lines(fix)
    return "easy" if lines <= EASY else "medium" if lines <= MEDIUM else "hard"


def _task_toml(project: Project, name: str, metadata: Mapping[str, object]) -> str:
    content = {
        "schema_version": "1.4",
        "task": {
            "name": f"glm5-pipeline/{name}",
            "version": "1.0.0",
            "description": f"a fix of {project.name}",
        },
        "metadata": {"category": "swe", "project": project.name, **metadata},
        "agent": {"timeout_sec": AGENT_SECONDS, "network_mode": "no-network"},
        "verifier": {"timeout_sec": VERIFIER_SECONDS, "environment_mode": "separate"},
        "environment": {
            "build_timeout_sec": BUILD_SECONDS, "cpus": 1, "memory_mb": 1024, "network_mode": "no-network",
            "workdir": project.workdir,
        },
        "artifacts": [{"source": project.workdir}],
    }  # fmt: skip
    return tomlkit.dumps(content)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
