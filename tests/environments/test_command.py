"""``glm5 env`` as a person uses it: a list, a task tried on a pipe, the oracle on request, clear refusals."""

import io
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile

import pytest

from environments import command
from environments.catalog import environments
from environments.sandbox import cgroups, choose
from environments.search.corpus import save
from environments.trajectory import Trajectory
from pipeline.errors import UserError
from tests.environments.search.conftest import World
from tests.sandboxes import backend_or_skip
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
    status, out, errors = env("try", "tools/calc", lines=lines)
    assert status == 1 and "plays the oracle's solution" in out and "calc(e)" in out
    assert "there is no tool 'fly' (known: calc)" in out and out.endswith("left without a verdict\n")
    assert errors.startswith("error: not all that the pipe said was done: there is no tool 'fly' (known: ")
    status, out, errors = env("try", "tools/calc")
    assert (status, errors) == (0, "") and out.endswith("left without a verdict\n")


def test_a_refused_command_at_a_terminal_is_no_failure(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    lines = iter(["/orcale", "/oracle loud", "/quit"])
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert command.main(["try", "tools/calc"]) == 0
    out = capsys.readouterr().out
    assert "there is no command /orcale" in out and "no thinking mode 'loud' (known: interleaved" in out


def test_the_sandbox_says_how_it_keeps_limits(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    backend_or_skip(tmp_path / "runs/sandbox")
    groups = cgroups.find()
    found = "memory, processes and CPU by control groups" if groups else "memory of each process and their"
    assert command.main(["sandbox"]) == 0
    assert capsys.readouterr().out.startswith(f"bubblewrap ({found}")
    monkeypatch.setattr(cgroups, "find", lambda: None)
    command.main(["sandbox"])
    assert "by rlimits, disk by a tmpfs, CPU not at all)" in capsys.readouterr().out


@pytest.fixture
def finished_search(tmp_path, monkeypatch):
    """A root where stage search_tasks is finished."""
    save(World(7).corpus(), tmp_path / "artifacts/tiny/search_tasks/corpus")
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    return tmp_path


def test_a_question_comes_with_a_python_tool_in_a_sandbox(finished_search):
    backend_or_skip(finished_search / "runs/sandbox", None)
    out = env("try", "search/links2", lines=["/call python print(6 * 7)", "/quit"])[1]
    assert "  python(code)" in out and "[tool] 42" in out


def test_a_question_needs_no_sandbox(finished_search, monkeypatch, capsys):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{finished_search}/none.sock")
    monkeypatch.setattr(choose, "NEEDED", {"no-such-program": "nothing"})
    monkeypatch.setattr(sys, "stdin", io.StringIO("/oracle\n"))
    assert command.main(["try", "search/links2"]) == 0
    out, errors = capsys.readouterr()
    assert out.endswith("reward 1: right\n") and "  python(code)" not in out
    assert "without the tool python: no sandbox can be started" in errors
    with pytest.raises(UserError, match="no sandbox can be started"):
        command.main(["try", "python_tool"])


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
        (("list", "--recipe", "nosuch"), 1, "error: there is no recipe recipes/nosuch.yaml (in recipes/: "),
        (("try", "tools", "--recipe", "nosuch"), 1, "error: there is no recipe recipes/nosuch.yaml"),
        (("fly",), 2, "invalid choice: 'fly'"),
        ((), 2, "required"),
    ],
)
def test_refusals(arguments, status, sentence):
    found, _, errors = env(*arguments)
    assert found == status and sentence in errors and "Traceback" not in errors
    assert status == 2 or errors.count("\n") == 1


def test_a_mistyped_command_and_an_odd_call_are_no_answers():
    lines = ["/orcale", "", '/call calc {"name": "x", "steps": "y", "e": "1+1"}']
    status, out, errors = env("try", "tools/calc", lines=lines)
    assert status == 1 and "there is no command /orcale" in out and errors.count("\n") == 1
    assert "reward 0: calc takes the arguments e" in out
    assert "Traceback" not in env("try", "tools/calc", lines=["/call calc " + "[" * 100_000])[2]


def recorded(path):
    return Trajectory.model_validate_json(path.read_text())


def test_an_episode_is_recorded(tmp_path):
    file, task = tmp_path / "episode.json", CATALOG["tools"].make_task("calc", 3)
    (_, arguments), result = task.truth["calls"][0], task.truth["answers"][0]
    lines = ["/help", f"/call calc {arguments['e']}", result]
    status, out, _ = env("try", "tools/calc", "--seed", "3", "--record", str(file), lines=lines)
    assert status == 0 and out.endswith("reward 1: right\n")
    trajectory = recorded(file)
    assert trajectory.agent.name == "person" and trajectory.extra["task"] == task.id
    assert (trajectory.extra["reward"], trajectory.extra["reason"]) == (1.0, "right")
    prompt, called, answered = trajectory.steps
    assert (prompt.source, prompt.message) == ("user", task.messages[-1]["content"])
    assert called.tool_calls[0].function_name == "calc" and called.tool_calls[0].arguments == arguments
    assert [shown.content for shown in called.observation.results] == [result]
    assert (answered.source, answered.message) == ("agent", result)


def test_a_record_of_the_oracle_holds_its_episode_alone(tmp_path):
    file = tmp_path / "episode.json"
    env("try", "tools/chain", "--seed", "1", "--record", str(file), lines=["/call calc 1+1", "/oracle"])
    trajectory, task = recorded(file), CATALOG["tools"].make_task("chain", 1)
    assert trajectory.agent.name == "oracle" and trajectory.extra["reward"] == 1.0
    said = [step.reasoning_content for step in trajectory.steps if step.source == "agent"]
    assert said == [m.get("reasoning_content") for m in CATALOG["tools"].oracle(task, "interleaved")]


def test_what_was_done_before_leaving_is_recorded(tmp_path):
    file = tmp_path / "episode.json"
    env("try", "tools/calc", "--record", str(file), lines=["/call calc 1+1"])
    trajectory = recorded(file)
    assert [step.source for step in trajectory.steps] == ["user", "agent"]
    assert trajectory.steps[1].observation.results[0].content == "2"
    assert (trajectory.extra["reward"], trajectory.extra["reason"]) == (None, "left without a verdict")


@pytest.mark.parametrize("name, why", [("none/e.json", "No such file"), ("there.json", "File exists")])
def test_a_record_that_cannot_be_made_is_refused_before_the_episode(tmp_path, name, why):
    (tmp_path / "there.json").write_text("mine")
    status, out, errors = env("try", "tools/calc", "--record", str(tmp_path / name), lines=["/oracle"])
    assert status == 1 and "reward" not in out and "Traceback" not in errors
    assert f"cannot be made ({why}" in errors and (tmp_path / "there.json").read_text() == "mine"


def test_a_record_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch, capsys):
    def lines():
        shutil.rmtree(tmp_path / "records")  # while the person thinks
        return "/oracle"

    (tmp_path / "records").mkdir()
    monkeypatch.setattr(command, "_piped", lambda _: lines())
    with pytest.raises(UserError, match="e.json cannot be written .No such file"):
        command.main(["try", "tools/calc", "--record", str(tmp_path / "records/e.json")])
    assert "reward 1: right" in capsys.readouterr().out


def test_one_interrupt_ends_an_episode():
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "env", "try", "tools/calc"], text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    print("/call calc 1+1", file=process.stdin)
    for line in process.stdout:
        if line == "[tool] 2\n":
            break
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE)
    assert process.returncode == 130 and "Traceback" not in process.stderr.read()
    process.communicate()


def test_a_record_of_an_episode_that_does_not_begin_is_not_left(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # without a browser
    status, _, errors = env("try", "slides/title", "--record", str(tmp_path / "e.json"), lines=["x"])
    assert status == 1 and "error: " in errors and not (tmp_path / "e.json").exists()


def archives_of(folder, tmp_path):
    """Of the folder itself, and of what is in it."""
    with tarfile.open(tmp_path / "whole.tar.gz", "w:gz") as made:
        made.add(folder, "tasks")
    with zipfile.ZipFile(tmp_path / "inside.zip", "w") as made:
        for path in sorted(folder.rglob("*")):
            made.write(path, path.relative_to(folder))
    return tmp_path / "whole.tar.gz", tmp_path / "inside.zip"


def test_an_archive_that_leads_outside_is_refused(tmp_path):
    with tarfile.open(tmp_path / "evil.tar", "w") as made:
        made.addfile(tarfile.TarInfo("../evil"), io.BytesIO())
    (tmp_path / "text").write_text("no archive")
    for name, why in (
        ("evil.tar", "holds the name '../evil', which leads out of the folder"),
        ("text", "is not an archive that can be read"),
        ("nothing", "there is no"),
    ):
        status, out, errors = env("validate", str(tmp_path / name))
        assert status == 1 and not out and why in errors and len(errors.splitlines()) == 1


def test_a_broken_task_does_not_keep_the_others_from_being_checked(tmp_path):
    tasks = tmp_path / "tasks"
    for name, text in (("one", "cpus = 1e308"), ("two", "cpus = 'many'")):
        files = {
            "instruction.md": "Do it.", "environment/Dockerfile": "FROM debian:12\nWORKDIR /a\n",
            "tests/test.sh": "true\n", "solution/solve.sh": "true\n", "task.toml": f"[environment]\n{text}\n",
        }  # fmt: skip
        for file, content in files.items():
            path = tasks / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    for place in (tasks, *archives_of(tasks, tmp_path)):
        status, out, errors = env("validate", str(place))
        assert status == 1 and "one" in out and "two" in out and "0 of 2 tasks are sound" in out
        assert "Traceback" not in errors
