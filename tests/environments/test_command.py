"""``glm5 env`` as a person uses it: a list, a task tried on a pipe, the oracle on request, clear refusals."""

import subprocess
import sys

import pytest

from environments.catalog import environments
from tests.waiting import PATIENCE

CATALOG = environments()


def env(*arguments, lines=()):
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "env", *arguments], input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_list_names_every_environment_and_family():
    status, out, _ = env("list")
    assert status == 0
    for name, environment in CATALOG.items():
        assert name in out and all(family in out for family in environment.families)
    assert "chain3" in env("list", "tools")[1] and "arithmetic" not in env("list", "tools")[1]


def test_a_person_calls_a_tool_and_answers():
    task = CATALOG["tools"].make_task("calc", 3)
    (_, arguments), result = task.truth["calls"][0], task.truth["answers"][0]
    status, out, _ = env("try", "tools/calc", "--seed", "3", lines=[f"/call calc {arguments['e']}", result])
    assert status == 0 and f"[tool] {result}" in out and out.endswith("reward 1: right\n")


def test_a_wrong_answer_is_told():
    assert "reward 0: turn 1: the answer is wrong" in env("try", "arithmetic/add2", lines=["no idea"])[1]


def test_the_oracle_shows_its_steps():
    out = env("try", "tools/chain", "--seed", "1", lines=["/oracle"])[1]
    assert "(thinks)" in out and "(calls) calc" in out and out.endswith("reward 1: right\n")
    assert "(thinks)" not in env("try", "tools/chain", lines=["/oracle off"])[1]


def test_help_tools_bad_calls_and_leaving():
    lines = ["/help", "/tools", "/call fly 1", "/call calc {", "/quit"]
    status, out, _ = env("try", "tools/calc", lines=lines)
    assert status == 0 and "plays the oracle's solution" in out and "calc(e)" in out
    assert "there is no tool 'fly' (known: calc)" in out and out.endswith("left without a verdict\n")
    assert env("try", "tools/calc")[1].endswith("left without a verdict\n")


def test_code_over_several_lines():
    task = CATALOG["code"].make_task("expression", 2)
    code = CATALOG["code"].oracle(task, "off")[0]["content"].splitlines()
    lines = [*(f"{line}\\" for line in code[:-1]), code[-1]]
    assert "reward 1" in env("try", "code/expression", "--seed", "2", lines=lines)[1]


@pytest.mark.parametrize(
    "arguments, status, sentence",
    [
        (("try", "nothing"), 1, "error: there is no environment 'nothing'"),
        (("try", "tools/none"), 1, "error: environment tools has no family 'none'"),
        (("list", "nothing"), 1, "error: there is no environment 'nothing'"),
        (("fly",), 2, "invalid choice: 'fly'"),
        ((), 2, "required"),
    ],
)
def test_refusals(arguments, status, sentence):
    found, _, errors = env(*arguments)
    assert found == status and sentence in errors and "Traceback" not in errors


def test_a_mistyped_command_and_an_odd_call_are_no_answers():
    lines = ["/orcale", "", '/call calc {"name": "x", "steps": "y", "e": "1+1"}']
    status, out, errors = env("try", "tools/calc", lines=lines)
    assert status == 0 and "there is no command /orcale" in out and not errors
    assert "reward 0: calc takes the arguments e" in out
    assert "Traceback" not in env("try", "tools/calc", lines=["/call calc " + "[" * 100_000])[2]


def test_a_broken_task_does_not_keep_the_others_from_being_checked(tmp_path):
    for name, text in (("one", "cpus = 1e308"), ("two", "cpus = 'many'")):
        files = {
            "instruction.md": "Do it.", "environment/Dockerfile": "FROM debian:12\nWORKDIR /a\n",
            "tests/test.sh": "true\n", "solution/solve.sh": "true\n", "task.toml": f"[environment]\n{text}\n",
        }  # fmt: skip
        for file, content in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    status, out, errors = env("validate", str(tmp_path))
    assert status == 1 and "one" in out and "two" in out and "0 of 2 tasks are sound" in out
    assert "Traceback" not in errors
    assert env("validate", str(tmp_path / "nothing"))[0] == 1
