"""Validation: the sound task passes every line; each kind of unsound one is rejected with its reason."""

import asyncio
import json
import re

import pytest

from environments.harbor.rubric import rubric
from environments.harbor.task import load_task
from environments.harbor.validation import validate
from environments.sandbox.choose import open_backend
from environments.sandbox.plain import PlainProcess
from pipeline.errors import UserError


def report_on(backend, folder, repeats: int = 1):
    return asyncio.run(validate(folder, backend, repeats))


def test_a_sound_task(backend, write_task):
    report = report_on(backend, write_task(), repeats=3)
    assert report.sound and report.reason == "", report
    assert all(line.passed and line.evidence for line in report.lines)
    assert [(run.agent, run.reward) for run in report.runs] == [
        *[("nop", 0.0)] * 3, ("planted", 0.0), ("emptied", 0.0), *[("oracle", 1.0)] * 3, ("forger", 0.0),
    ]  # fmt: skip
    stored = json.loads(report.to_json())
    assert stored["sound"] is True and stored["backend"] == backend.name and len(stored["digest"]) == 64


FROM = "FROM python:3.11-slim-bookworm\n"
GIVEN = "#!/bin/bash\nmkdir -p /logs/verifier\n"
FLAKY = GIVEN + "echo $(( $(date +%N | sed 's/^0*//') % 2 )) > /logs/verifier/reward.txt\n"
ALWAYS = GIVEN + "echo 1 > /logs/verifier/reward.txt\n"
NEVER = GIVEN + "echo 0 > /logs/verifier/reward.txt\n"
SOMETIMES = GIVEN + "[ -e /app/total.txt ] && echo 1 > /logs/verifier/reward.txt\n"
FAR = "import sys\nsys.exit(open('/app/total.txt').read().strip() != '100')\n"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task.toml": None}, "task.toml is missing, and every"),
        ({"environment/Dockerfile": f"{FROM}RUN exit 3\n"}, "the image builds: .*3"),
        ({"environment/Dockerfile": f"{FROM}VOLUME /x\n"}, "the image builds: .*VOLUME"),
    ],
)
def test_what_has_no_image(backend, write_task, changes, reason):
    assert_unsound(report_on(backend, write_task(changes=changes)), reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tests/test.sh": ALWAYS}, "doing nothing scores 0: 1.0"),
        ({"tests/test.sh": NEVER}, "the solution scores 1: 0.0"),
        ({"tests/test.sh": SOMETIMES}, "doing nothing scores 0: None"),
        ({"solution/solve.sh": None}, "the solution computes its result: there is no solution"),
        (
            {"environment/Dockerfile": f"{FROM}WORKDIR /app\nCOPY numbers.txt .\nRUN mkdir /tests\n"},
            "the image has no /tests and no /solution: /tests",
        ),
    ],
)  # fmt: skip
def test_what_runs_show(best_backend, write_task, changes, reason):
    assert_unsound(report_on(best_backend, write_task(changes=changes)), reason)


def assert_unsound(report, reason: str) -> None:
    assert not report.sound
    assert re.search(reason, report.reason), report.reason
    assert "\n" not in report.reason


def test_a_flaky_task_is_caught(best_backend, write_task):
    # The coin is the clock's last digit; two times six tosses are equal once in a thousand times.
    report = report_on(best_backend, write_task(changes={"tests/test.sh": FLAKY}), repeats=6)
    assert not report.sound
    line = next(line for line in report.lines if line.name == "every run gives the same")
    assert not line.passed and "0.0 (graded)" in line.evidence and "1.0 (graded)" in line.evidence


def test_the_delivered_program_that_tests_run_can_forge_and_that_is_said(backend, write_task):
    check = """\
import subprocess, sys
done = subprocess.run([sys.executable, "/app/total.py", "/app/numbers.txt"], capture_output=True, text=True)
sys.exit(done.stdout.strip() != "100" or open("/app/total.txt").read().strip() != "100")
"""
    report = report_on(backend, write_task(changes={"tests/check.py": check}))
    forged = next(line for line in report.lines if line.name == "a delivered program cannot forge")
    assert report.sound and not forged.decisive
    assert not forged.passed and "let verifier.collect run it" in forged.evidence


def lines(folder) -> dict[str, str]:
    """The lines of the rubric that do not pass, with their evidence."""
    return {line.name: line.evidence for line in rubric(load_task(folder)) if not line.passed}


NAMED, LOOKED_AT = (
    "the instruction names what the tests look at",
    "the tests look at what the instruction names",
)
CLEAN = "the tests run in a clean sandbox"
CLOSED, OPEN = 'network_mode = "no-network"\n[verifier]', 'network_mode = "public"\n[verifier]'
PIP = "RUN pip install pandas six==1.16.0\nWORKDIR"


@pytest.mark.parametrize(
    ("path", "old", "new", "name", "evidence"),
    [
        ("instruction.md", "to /app/total.txt", "to a file", NAMED, "/app/total.txt"),
        ("instruction.md", "The folder", "Write /app/report.csv. The folder", LOOKED_AT, "/app/report.csv"),
        (
            "environment/answer.py",
            "",
            FAR,
            "tests and solution are not in the image",
            "answer.py is tests/check",
        ),
        ("task.toml", CLOSED, OPEN, "no network", "task.toml"),
        ("solution/solve.sh", "cat >", "curl -s https://x.org/a\ncat >", "no network", "solution has 'curl'"),
        ("environment/Dockerfile", "WORKDIR", PIP, "pip installs are pinned", "without ==: pandas"),
        ("task.toml", 'environment_mode = "separate"\n', "", CLEAN, "set verifier.environment_mode"),
        ("task.toml", 'artifacts = ["/app"]\n', "", CLEAN, "artifacts is empty"),
        ("task.toml", "memory_mb = 512\n", "", "limits are stated", "does not say environment.memory_mb"),
    ],
)
def test_what_texts_show(write_task, path, old, new, name, evidence):
    folder = write_task(changes={"tests/check.py": FAR} if "answer" in path else None)
    if old:
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new))
    else:
        (folder / path).write_text(new)
    failed = lines(folder)
    assert list(failed) == [name] and evidence in failed[name]


@pytest.mark.parametrize(
    ("script", "computes"),
    [
        ("echo 100 > /app/total.txt", False),
        ("cat > /app/total.txt <<END\n100\nEND", False),
        ("mkdir -p /app/x; printf '100' > /app/total.txt", False),
        ("awk '{s += $1} END {print s}' /app/numbers.txt > /app/total.txt", True),
        ("echo $(( $(paste -sd+ /app/numbers.txt) )) > /app/total.txt", True),
        ("sort /app/numbers.txt > /app/sorted.txt", True),
        ("cat > /app/total.py <<END\nprint(1)\nEND", True),
    ],
)
def test_a_solution_that_only_says_the_answer(write_task, script, computes):
    folder = write_task(changes={"solution/solve.sh": f"#!/bin/bash\nset -e\n{script}\n"})
    assert ("the solution computes its result" not in lines(folder)) == computes


def test_a_backend_that_does_not_isolate_is_refused(write_task):
    """The agents that are tried overwrite interpreters and start-up files wherever they are let."""
    with pytest.raises(UserError, match="hostile agents, and backend process would let them on this host"):
        asyncio.run(validate(write_task(), PlainProcess()))
    with pytest.raises(UserError, match="no sandbox backend 'process'"):
        open_backend("process")


def test_an_image_that_takes_too_long_to_build_is_a_fault_of_the_task(backend, write_task):
    folder = write_task()
    config = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(
        config.replace("[environment]", "[environment]\nbuild_timeout_sec = 0.5")
    )
    with open(folder / "environment/Dockerfile", "a") as file:
        file.write("RUN sleep 5\n")
    report = report_on(backend, folder)
    assert not report.sound
    assert "was not built in 0.5 s (build_timeout_sec)" in report.reason
