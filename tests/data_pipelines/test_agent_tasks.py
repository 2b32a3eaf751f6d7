"""Stage ``agent_tasks`` with real sandboxes: what is kept, what is rejected and why, what a kill costs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from data_pipelines.agent_tasks import shares
from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.funnel import Funnel, Seen
from data_pipelines.task_building.implementing import content_digest, implement
from data_pipelines.task_building.refining import BROKEN, Refiner
from data_pipelines.task_building.swe.projects import PROJECTS
from data_pipelines.task_building.terminal import catalog
from data_pipelines.task_building.terminal.draft import TerminalDraft
from environments.harbor.task import load_task, load_tasks
from environments.sandbox.interface import Backend, SandboxError
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.recipe import load_recipe
from pipeline.recipe.data import AgentTasksSection
from pipeline.recipe.load import recipe_names
from tests.data_pipelines.conftest import ROOT
from tests.waiting import wait_until

SUMMED = """\
from pathlib import Path


def test_sum():
    assert Path("/app/sum.txt").read_text().split() == ["7"]
"""
GOOD = TerminalDraft(
    title="Add numbers",
    instruction="Write the sum of the numbers in /app/in.txt, one a line, to /app/sum.txt.",
    files={"in.txt": b"3\n4\n"},
    solution="# Add them up.\nawk '{ sum += $1 } END { print sum }' in.txt > sum.txt",
    tests=SUMMED,
)
FLAKY = (
    "import time\n\n\ndef test_clock():\n    assert open('/app/sum.txt') and time.time_ns() // 1000 % 7 < 3\n"
)
# Why a draft is no task -> the draft.
BROKEN_DRAFTS = {
    "the solution scores 1": replace(GOOD, solution="# Say something else.\nwc -l < in.txt > sum.txt"),
    "doing nothing scores 0": replace(
        GOOD, tests="def test_a():\n    assert open('/app/in.txt')\n# /app/sum.txt\n"
    ),
    "the image builds": replace(GOOD, setup="echo no; exit 3"),
    "the instruction names what the tests look at": replace(
        GOOD, instruction="Write the sum of the numbers in /app/in.txt."
    ),
    "the solution computes its result": replace(GOOD, solution="# It is known.\necho 7 > sum.txt"),
}


def numbered(draft: TerminalDraft, seed: int) -> TerminalDraft:
    """Another instruction for each seed, so that none is nearly the same as an earlier one."""
    words = " ".join(f"{chr(97 + (seed * 7 + place) % 26)}{seed}{place}" for place in range(12))
    return replace(draft, instruction=f"{draft.instruction} Remember: {words}.")


@pytest.fixture
def planted(monkeypatch):
    """``planted(drafts)``: family "planted" of the catalogue gives these drafts by seed, then good ones."""

    def plant(drafts: list[TerminalDraft], heldout: bool = False) -> None:
        numbers = iter(range(10_000))

        def draw(rng):
            number = next(numbers)
            draft = drafts[number] if number < len(drafts) else GOOD
            return numbered(draft, number)

        monkeypatch.setitem(catalog.FAMILIES, "planted", catalog.Family(draw, "test", heldout))

    return plant


def made(chain, families: dict, terminal: int, **changes):
    """The stage run below a fresh root: its folder."""
    section = {"terminal": terminal, "families": families, "swe": {"tasks": 0}, "repeats": 2, **changes}
    run = chain([{"kind": "folder", "name": "none", "path": "."}], agent_tasks=section)
    run.run("agent_tasks")
    return run.folder("agent_tasks")


def test_broken_drafts_are_rejected_with_their_reason_and_the_others_are_kept(chain, planted, task_backend):
    planted(list(BROKEN_DRAFTS.values()))
    folder = made(chain, {"planted": 1.0}, 3)
    rows = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    funnel = json.loads((folder / "funnel.json").read_text())
    assert funnel["reasons"] == dict.fromkeys(BROKEN_DRAFTS, 1)
    assert funnel["rows"][0]["drafted"] == 8 and funnel["rows"][0]["kept"] == len(rows) == 3
    tasks, faults = load_tasks(folder / "tasks")
    assert faults == [] and {task.digest for task in tasks} == {row["digest"] for row in rows}
    for row in rows:
        assert row["kind"] == "terminal" and row["licence"] == "Apache-2.0" and not row["heldout"]
        report = json.loads((folder / "reports" / f"{row['name']}.json").read_text())
        agents = [run["agent"] for run in report["runs"]]
        assert agents.count("nop") == agents.count("oracle") == 2 and "planted" in agents
        assert all(line["passed"] for line in report["lines"] if line["decisive"])
    dropped = [json.loads(path.read_text()) for path in sorted((folder / "rejected").iterdir())]
    assert {record["reason"] for record in dropped} == set(BROKEN_DRAFTS)
    for record in dropped:
        assert record["detail"] and record["draft"]["title"] == "Add numbers"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["tasks/kept"] == 3 and metrics["tasks/rejected"] == 5 and metrics["tasks/short"] == 0


def test_a_family_that_gives_too_few_tasks_ends_and_is_counted(chain, planted, task_backend):
    planted([BROKEN_DRAFTS["the image builds"]] * 3)
    folder = made(chain, {"planted": 1.0}, 1)
    assert json.loads((folder / "metrics.json").read_text())["tasks/short"] == 1


def test_tests_that_vary_are_found(planted, task_backend, tmp_path):
    planted([replace(GOOD, tests=FLAKY)])
    refiner = Refiner(task_backend, tmp_path, repeats=6, seconds=120, rounds=0)
    outcome = asyncio.run(refiner.refine(refiner.prepare(catalog.scripted("planted", 0))))
    assert outcome.reason in ("the solution scores 1", "every run gives the same")


def test_a_killed_build_goes_on_and_gives_the_same(chain, tmp_path, task_backend, monkeypatch):
    families = {"migrate-settings": 1.0, "table-clean": 1.0}
    section = {"terminal": 2, "families": families, "swe": {"tasks": 0}, "repeats": 1, "at_once": 1}
    run = chain([{"kind": "folder", "name": "none", "path": "."}], agent_tasks=section)
    command = [sys.executable, "-m", "data_pipelines.agent_tasks", "--recipe", str(run.recipe)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    verdicts = artifacts.run_dir("small", "agent_tasks") / "verdicts"
    wait_until(lambda: list(verdicts.glob("[!.]*.json")), "a verdict")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in verdicts.glob("[!.]*.json")}
    assert not run.folder("agent_tasks").exists()
    run.run("agent_tasks")
    after = {path.name: path.stat().st_mtime_ns for path in verdicts.glob("[!.]*.json")}
    assert len(after) == 2 and before.items() <= after.items()
    record = artifacts.verify(run.folder("agent_tasks"))
    fresh = made(
        lambda *given, **sections: chain(*given, name="fresh", **sections), families, 2, repeats=1, at_once=1
    )
    again = artifacts.verify(fresh)
    assert record["files"] == again["files"]
    assert record["facts"]["backend"] == "bubblewrap"


class Failing(Backend):
    """A backend that fails a number of times before it is the real one."""

    def __init__(self, backend, times: int):
        self.backend, self.times, self.name = backend, times, backend.name

    async def build(self, folder):
        if self.times:
            self.times -= 1
            raise SandboxError("out of namespaces")
        return await self.backend.build(folder)

    async def start(self, image, limits):
        return await self.backend.start(image, limits)


@pytest.mark.parametrize(("times", "reason"), [(1, ""), (2, BROKEN)])
def test_a_sandbox_that_fails_is_tried_again_and_says_nothing_of_the_task(
    times, reason, task_backend, planted, tmp_path
):
    planted([])
    refiner = Refiner(Failing(task_backend, times), tmp_path, repeats=1, seconds=120, rounds=0)
    outcome = asyncio.run(refiner.refine(refiner.prepare(catalog.scripted("planted", 0))))
    assert outcome.reason == reason
    assert len(list((tmp_path / "verdicts").iterdir())) == (0 if reason else 1)


def test_without_a_sandbox_there_is_one_sentence(chain, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(UserError) as error:
        made(chain, {"log-report": 1.0}, 1, backend="docker")
    assert "\n" not in str(error.value)


def test_a_recipe_that_wants_no_task_needs_no_sandbox(chain, monkeypatch):
    monkeypatch.setattr("data_pipelines.agent_tasks.open_backend", lambda name: pytest.fail("it was asked"))
    folder = made(chain, {}, 0)
    assert (folder / "tasks.jsonl").read_text() == "" and not list((folder / "tasks").iterdir())


def test_an_unknown_family_is_named(chain, task_backend):
    with pytest.raises(UserError, match="no family 'log-reprot' of terminal tasks"):
        made(chain, {"log-reprot": 1.0}, 1)


def candidate(write, name: str = "one") -> Candidate:
    return Candidate(name, "terminal", "planted", False, "here", "MIT", write)


def test_what_can_be_repaired_by_machine_is(tmp_path):
    def write(folder):
        catalog.FAMILIES["planted"] = catalog.Family(lambda rng: GOOD, "test")
        try:
            catalog.scripted("planted", 1).write(folder)
        finally:
            del catalog.FAMILIES["planted"]
        script = folder / "solution/solve.sh"
        script.write_bytes(
            b"\xef\xbb\xbf" + script.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        )
        (folder / "tests/test.sh").chmod(0o644)

    repaired = implement(candidate(write), tmp_path / "one")
    assert len(repaired) == 2 and all("solve.sh" in line or "test.sh" in line for line in repaired)
    text = (tmp_path / "one/solution/solve.sh").read_bytes()
    assert text.startswith(b"#!/bin/bash\n") and b"\r" not in text and text.endswith(b"\n")
    assert load_task(tmp_path / "one").solution is not None


def test_a_folder_is_whole_or_not_there(tmp_path):
    def half(folder):
        (folder / "task.toml").write_text("")

    def fails(folder):
        half(folder)
        raise OSError("no space")

    with pytest.raises(Rejected, match="a file is missing: instruction.md"):
        implement(candidate(half), tmp_path / "one")
    with pytest.raises(OSError, match="no space"):
        implement(candidate(fails), tmp_path / "one")
    assert list(tmp_path.iterdir()) == []


def test_the_same_task_and_nearly_the_same_instruction_are_found(tmp_path):
    text = " ".join(f"word{number}" for number in range(80))
    seen = Seen()
    seen.add("f", "first", text, "a")
    assert seen.find("f", "quite another one", "a") == ("the same task again", "first")
    assert seen.find("f", text + " end", "b") == ("nearly the same instruction", "first")
    assert seen.find("g", text, "b") is None
    assert seen.find("f", text.replace("word7", "other"), "b") is None
    for number in range(2):
        folder = tmp_path / str(number)
        (folder / "tests").mkdir(parents=True)
        (folder / "task.toml").write_text(f"name = {number}")
        (folder / "tests/test.sh").write_text("true")
    assert content_digest(tmp_path / "0") == content_digest(tmp_path / "1")
    (tmp_path / "1/tests/test.sh").write_text("tru")
    assert content_digest(tmp_path / "0") != content_digest(tmp_path / "1")


def test_the_funnel_adds_up():
    funnel = Funnel()
    funnel.keep("terminal", "a")
    for number in range(5):
        funnel.reject("terminal", "a", f"a-{number}", "no reason", f"detail {number}")
    funnel.drop("swe", "left out", "too small", 4)
    content = funnel.to_json()
    assert [row["drafted"] for row in content["rows"]] == [4, 6]
    assert content["reasons"] == {"no reason": 5, "too small": 4}
    assert [example["name"] for example in content["examples"]["no reason"]] == ["a-0", "a-1", "a-2"]
    assert funnel.kept("terminal") == 1 and funnel.rejected() == 9


def test_shares_add_up():
    section = AgentTasksSection(terminal=10, families={"a": 1, "b": 1, "c": 1, "d": 0})
    assert sum(shares(section).values()) == 10 and "d" not in shares(section)


def test_recipes_name_families_that_there_are():
    for name in recipe_names():
        section = load_recipe(name).agent_tasks
        for family in section.families:
            catalog.find(family)
        assert set(section.swe.projects) <= PROJECTS.keys()
    many = load_recipe("agents").agent_tasks
    assert set(many.families) == set(catalog.FAMILIES) and many.terminal >= 120
    assert any(catalog.find(name).heldout for name in load_recipe("tiny").agent_tasks.families)
