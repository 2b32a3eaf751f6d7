"""The Harbor folder of a terminal draft: https://harborframework.com, schema 1.4. Nothing of this project is
needed inside it.
"""

import json
from pathlib import Path

import tomlkit

from data_pipelines.task_building.terminal.draft import WORKDIR, TerminalDraft

BASE = "python:3.11-slim-bookworm"
AGENT_SECONDS = 900
VERIFIER_SECONDS = 120
BUILD_SECONDS = 300
COLLECT_SECONDS = 120

TEST_SH = """\
#!/bin/bash
# Leaves 1 in /logs/verifier/reward.txt when every test passes, else 0.
# The braces make bash read all of it before anything that was delivered runs.
{
    set -uo pipefail
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    unset BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH
    cd /
    mkdir -p /logs/verifier
    chmod 700 /logs/verifier
    echo 0 > /logs/verifier/reward.txt
    reward=0
    if python3 -I -S /tests/run_tests.py; then
        reward=1
    fi
    echo "$reward" > /logs/verifier/reward.txt
    exit 0
}
"""

RUN_TESTS = '''\
"""Runs every function test_* of /tests/test_outputs.py; status 0 when there is one and all of them pass."""

import linecache
import os
import sys
import traceback
from pathlib import Path

TESTS = Path("/tests")


def main() -> int:
    source = (TESTS / "test_outputs.py").read_text()
    name = "<test_outputs.py>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    module = {"__name__": "test_outputs"}
    exec(compile(source, name, "exec"), module)
    # From here on the answers are in memory alone: programs that the tests run must not find them.
    for file in TESTS.iterdir():
        file.unlink()
    tests = {key: value for key, value in module.items() if key.startswith("test_") and callable(value)}
    failed = 0
    for key, test in tests.items():
        try:
            test()
        except BaseException:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAILED {key}", flush=True)
        else:
            print(f"PASSED {key}", flush=True)
    print(f"{len(tests) - failed} of {len(tests)} tests passed", flush=True)
    return 0 if tests and not failed else 1


status = 1
try:
    status = main()
finally:
    sys.stdout.flush()
    os._exit(status)
'''

SOLVE_SH = """\
#!/bin/bash
# {title}
set -euo pipefail
cd {workdir}

{solution}
"""


def write_folder(draft: TerminalDraft, folder: Path, name: str, metadata: dict[str, str]) -> None:
    """Write task.toml, instruction.md, environment/, solution/ and tests/ into ``folder``, which is empty."""
    _write(folder / "task.toml", _task_toml(draft, name, metadata))
    _write(folder / "instruction.md", draft.instruction.strip() + "\n")
    _write(folder / "environment/Dockerfile", dockerfile(draft))
    for path, content in draft.files.items():
        target = folder / "environment/files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    if draft.setup.strip():
        _write(folder / "environment/setup.sh", draft.setup.strip() + "\n")
    solution = SOLVE_SH.format(title=draft.title, workdir=WORKDIR, solution=draft.solution.strip())
    _write(folder / "solution/solve.sh", solution, 0o755)
    _write(folder / "tests/test.sh", TEST_SH, 0o755)
    _write(folder / "tests/run_tests.py", RUN_TESTS)
    _write(folder / "tests/test_outputs.py", draft.tests.strip() + "\n")
    if draft.expected is not None:
        _write(
            folder / "tests/expected.json", json.dumps(draft.expected, indent=1, ensure_ascii=False) + "\n"
        )


def dockerfile(draft: TerminalDraft) -> str:
    """Files first, commands after them; Debian packages only where the base image lacks their command."""
    lines = [f"FROM {BASE}"]
    if draft.packages:
        missing = " && ".join(f"command -v {package} >/dev/null" for package in draft.packages)
        install = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(draft.packages)}"
        lines.append(f"RUN ({missing}) || ({install} && rm -rf /var/lib/apt/lists/*)")
    lines.append(f"WORKDIR {WORKDIR}")
    if draft.files:
        lines.append(f"COPY files/ {WORKDIR}/")
    if draft.setup.strip():
        lines += ["COPY setup.sh /tmp/setup.sh", "RUN bash -eu /tmp/setup.sh && rm /tmp/setup.sh"]
    return "\n".join(lines) + "\n"


def _task_toml(draft: TerminalDraft, name: str, metadata: dict[str, str]) -> str:
    verifier: dict = {"timeout_sec": VERIFIER_SECONDS, "environment_mode": "separate"}
    if draft.collect.strip():
        command = tomlkit.string(draft.collect.strip() + "\n", multiline=True)
        verifier["collect"] = [{"command": command, "timeout_sec": COLLECT_SECONDS}]
    content = {
        "schema_version": "1.4",
        "artifacts": [WORKDIR],
        "task": {"name": f"glm5-pipeline/{name}", "version": "1.0.0", "description": draft.title},
        "metadata": {"difficulty": draft.difficulty, **metadata},
        "agent": {"timeout_sec": AGENT_SECONDS, "network_mode": "no-network"},
        "verifier": verifier,
        "environment": {
            "build_timeout_sec": BUILD_SECONDS, "cpus": 1, "memory_mb": 1024, "network_mode": "no-network",
        },
    }  # fmt: skip
    return tomlkit.dumps(content)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
