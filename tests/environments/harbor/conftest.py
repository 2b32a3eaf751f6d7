"""A miniature Harbor task, written anew for each test, and the backends to try it on."""

from pathlib import Path

import pytest

from tests.environments.sandbox.conftest import backend, bubblewrap, docker  # noqa: F401 - fixtures
from tests.environments.sandbox.docker_engine import docker_engine  # noqa: F401 - a fixture
from tests.sandboxes import backend_or_skip, image_cache

CONFIG = """\
schema_version = "1.4"
artifacts = ["/app"]
[task]
name = "miniature/total"
version = "1.0.0"
[metadata]
category = "text"
difficulty = "easy"
licence = "Apache-2.0"
[agent]
timeout_sec = 60
network_mode = "no-network"
[verifier]
timeout_sec = 30
environment_mode = "separate"
[environment]
cpus = 1
memory_mb = 512
storage_mb = 64
network_mode = "no-network"
# The program is run on numbers that no agent has seen, where neither tests nor rewards are.
[[verifier.collect]]
timeout_sec = 30
command = '''
mkdir -p /logs/artifacts && cd /logs/artifacts
for seed in 1 2 3; do
  seq $seed 7 $((seed * 40)) > case.txt
  timeout 10 python3 /app/total.py case.txt > total-$seed.txt
done
'''
"""
INSTRUCTION = """\
The folder /app holds numbers.txt with one whole number a line. Write the program /app/total.py: run as
`python3 /app/total.py FILE` it prints the sum of the numbers in FILE. Also write the sum of /app/numbers.txt
to /app/total.txt.
"""
DOCKERFILE = """\
FROM python:3.11-slim-bookworm
WORKDIR /app
COPY numbers.txt /app/numbers.txt
"""
SOLVE = """\
#!/bin/bash
# A program that sums, and its result for the numbers that are there.
cat > /app/total.py <<'END'
import sys
print(sum(int(line) for line in open(sys.argv[1])))
END
python3 /app/total.py /app/numbers.txt > /app/total.txt
"""
TEST = """\
#!/bin/bash
# Leaves one number in /logs/verifier/reward.txt, whatever happens.
mkdir -p /logs/verifier
if python3 -I /tests/check.py; then reward=1; else reward=0; fi
echo "$reward" > /logs/verifier/reward.txt
"""
CHECK = '''\
"""The sums that /app/total.py printed, and /app/total.txt, which holds that of /app/numbers.txt."""

import sys
from pathlib import Path

for seed in (1, 2, 3):
    printed = Path(f"/logs/artifacts/total-{seed}.txt").read_text().strip()
    if printed != str(sum(range(seed, seed * 40 + 1, 7))):
        sys.exit(f"the sum of case {seed} is wrong")
total = Path("/app/total.txt").read_text().strip()
sys.exit(0 if total == "100" else "the sum of numbers.txt is wrong")
'''
FILES = {
    "task.toml": CONFIG,
    "instruction.md": INSTRUCTION,
    "environment/Dockerfile": DOCKERFILE,
    "environment/numbers.txt": "27\n73\n",
    "solution/solve.sh": SOLVE,
    "tests/test.sh": TEST,
    "tests/check.py": CHECK,
}


@pytest.fixture(scope="session")
def best_backend(tmp_path_factory):
    """For what does not depend on the backend."""
    return backend_or_skip(image_cache(tmp_path_factory), None)


@pytest.fixture
def write_task(tmp_path):
    """``write_task(name, {path: content})``: the folder of the miniature task with some files changed; a file
    whose content is None is left out.
    """

    def write(name: str = "total", changes: dict[str, str | bytes | None] | None = None) -> Path:
        folder = tmp_path / "tasks" / name
        for path, content in {**FILES, **(changes or {})}.items():
            if content is None:
                continue
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return write
