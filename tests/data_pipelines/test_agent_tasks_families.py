"""Every family of terminal tasks: distinct, sound tasks out of seeds, with tests that cannot be cheated."""

import asyncio
import json
import random
import re
import tomllib

import pytest

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.funnel import NEAR, shingles, similarity
from data_pipelines.task_building.implementing import content_digest
from data_pipelines.task_building.terminal import catalog
from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families import makefiles, scripts, specifications
from data_pipelines.task_building.terminal.folder import write_folder
from environments.harbor.rubric import rubric
from environments.harbor.task import load_task
from tests.data_pipelines.task_sandbox import SOLVE, file_after_solution, rewards

FAMILIES = list(catalog.FAMILIES)
OUTPUTS = ("report", "out", "file")  # where expected.json names the file that a task asks for
PROGRAMS = ("fix-script", "write-program", "set-modes")


def write(tmp_path, family: str, seed: int):
    folder = tmp_path / f"{family}-{seed}"
    folder.mkdir(parents=True)
    catalog.scripted(family, seed).write(folder)
    return folder


def output_of(family: str, seed: int) -> str | None:
    expected = catalog.draw(family, seed).expected
    found = [expected[key] for key in OUTPUTS if str(expected.get(key, "")).startswith("/app/")]
    return found[0] if found else None


def test_some_whole_families_are_held_out_and_there_is_variety():
    heldout = [name for name, family in catalog.FAMILIES.items() if family.heldout]
    assert len(FAMILIES) >= 20 and 3 <= len(heldout) <= len(FAMILIES) // 4
    assert len({family.category for family in catalog.FAMILIES.values()}) >= 5


@pytest.mark.parametrize("family", FAMILIES)
def test_hundreds_of_distinct_tasks_come_out_of_seeds(family, tmp_path):
    drafts = [catalog.draw(family, seed) for seed in range(100)]
    contents = {
        json.dumps([d.instruction, d.expected, d.solution], sort_keys=True, default=str) for d in drafts
    }
    assert len(contents) == len(drafts)
    seen, fresh = [], 0
    for draft in drafts:
        words = shingles(draft.instruction)
        fresh += all(similarity(words, other) < NEAR for other in seen)
        seen.append(words)
    assert fresh > 70, f"only {fresh} of {len(drafts)} instructions are not nearly the same as an earlier one"
    assert catalog.draw(family, 7).to_record() == catalog.draw(family, 7).to_record()
    first, again = write(tmp_path / "a", family, 3), write(tmp_path / "b", family, 3)
    assert content_digest(first) == content_digest(again)


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_say_what_they_are(family, tmp_path):
    for seed in (11, 12, 13, 14):
        folder = write(tmp_path, family, seed)
        metadata = tomllib.loads((folder / "task.toml").read_text())["metadata"]
        assert metadata["family"] == family and metadata["heldout"] == catalog.FAMILIES[family].heldout
        assert metadata["licence"] == "Apache-2.0" and f"seed {seed}" in metadata["provenance"]
        assert metadata["difficulty"] in ("easy", "medium", "hard")
        assert [line for line in rubric(load_task(folder)) if not line.passed] == []
        lines = [line.strip() for line in (folder / "solution/solve.sh").read_text().splitlines()]
        assert sum(line.startswith("#") for line in lines) >= 2, "the solution does not say what it does"
        assert "<<" not in (folder / "instruction.md").read_text()
        output = output_of(family, seed)
        assert output is None or output in (folder / "instruction.md").read_text()


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_scores_0_the_solution_1_and_the_result_of_another_task_0(family, tmp_path, task_backend):
    one, other = 21, 22
    folder = write(tmp_path, family, one)
    plays = [(":",), (SOLVE,)]
    mine, theirs = output_of(family, one), output_of(family, other)
    if mine is not None:
        answer = asyncio.run(file_after_solution(task_backend, write(tmp_path, family, other), theirs))
        plays.append(((mine, answer),))
    assert rewards(task_backend, folder, *plays) == [0.0, 1.0, 0.0][: len(plays)]


@pytest.mark.parametrize("family", PROGRAMS)
def test_programs_that_print_a_known_answer_or_nothing_score_0(family, tmp_path, task_backend):
    folder = write(tmp_path, family, 31)
    path = re.search(r"/app/bin/[\w-]+(\.sh)?", (folder / "instruction.md").read_text())[0]
    trial = json.loads((folder / "tests/expected.json").read_text())["trials"][0]
    known = trial[0]["output"]
    fixed = f"#!/bin/sh\ncat <<'END'\n{known}END\n".encode()
    forging = b"#!/bin/sh\nmkdir -p /logs/verifier /tests\necho 1 > /logs/verifier/reward.txt\nexit 0\n"
    plays = [((path, program),) for program in (fixed, b"#!/bin/sh\nexit 0\n", forging)]
    assert rewards(task_backend, folder, *plays) == [0.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(scripts.DESCRIBED))
def test_each_single_fault_of_a_script_is_seen(kind, tmp_path, task_backend):
    _, template, faults = scripts.DESCRIBED[kind]
    seed = next(seed for seed in range(99) if f"({kind})" in catalog.draw("fix-script", seed).title)
    folder = write(tmp_path, "fix-script", seed)
    path = re.search(r"/app/bin/[\w-]+\.sh", (folder / "instruction.md").read_text())[0]
    plays = []
    for broken in faults:
        text = scripts.fill(template, **{name: pair[name == broken] for name, pair in faults.items()})
        plays.append(((path, text.encode()),))
    assert rewards(task_backend, folder, *plays) == [0.0] * len(faults)


@pytest.mark.slow
def test_each_single_fault_of_a_makefile_is_seen(tmp_path, task_backend):
    folder = write(tmp_path, "fix-makefile", 5)
    expected = json.loads((folder / "tests/expected.json").read_text())
    project, out, faults = expected["project"], expected["out"], makefiles.MAKEFILE_FAULTS
    plays = []
    for broken in faults:
        text = scripts.fill(
            makefiles.MAKEFILE, out=out, **{name: pair[name == broken] for name, pair in faults.items()}
        )
        plays.append((SOLVE, (f"{project}/Makefile", text.replace("<<out>>", out).encode())))
    assert rewards(task_backend, folder, *plays) == [0.0] * len(faults)


@pytest.mark.slow
@pytest.mark.parametrize("kind", specifications.KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_program_is_solved(kind, tmp_path, task_backend, monkeypatch):
    monkeypatch.setattr(specifications, "KINDS", (kind,))
    for seed in (41, 42):
        assert rewards(task_backend, write(tmp_path, "write-program", seed), (SOLVE,)) == [1.0]


def test_drafts_that_are_none_are_refused():
    good = {"title": "t", "instruction": "i", "solution": "s", "tests": "def test_a(): pass"}
    assert TerminalDraft.from_json(f"Here it is:\n{json.dumps(good)}\nDone.").title == "t"
    for change, reason in (
        ({"title": " "}, "no title"),
        ({"tests": "print(1)"}, "no function test_"),
        ({"files": {"../x": "a"}}, "outside of its folder"),
        ({"files": {"/etc/x": "a"}}, "outside of its folder"),
        ({"files": {"a": 3}}, "no texts by path"),
        ({"files": {str(number): "" for number in range(501)}}, "too many files"),
        ({"solution": "x" * 30_000}, "solution is too long"),
        ({"setup": 3}, "setup is no text"),
        ({"difficulty": "odd"}, "no known difficulty"),
    ):
        with pytest.raises(Rejected, match=reason):
            TerminalDraft.from_json(json.dumps({**good, **change}))
    for text in ("no json", "{", '["a"]', "}{"):
        with pytest.raises(Rejected, match="no JSON object"):
            TerminalDraft.from_json(text)


def test_packages_are_installed_only_where_they_are_missing(tmp_path):
    draft = TerminalDraft("t", "i", "s", "def test_a(): pass", packages=("git",), setup="true")
    write_folder(draft, tmp_path, "t", {})
    lines = (tmp_path / "environment/Dockerfile").read_text().splitlines()
    assert lines[1].startswith("RUN (command -v git >/dev/null) || (apt-get update")
    assert {line.split()[0] for line in lines} <= {"FROM", "RUN", "WORKDIR", "COPY"}


def test_seeds_of_python_do_not_matter():
    random.seed(1)
    one = catalog.draw("log-report", 5).instruction
    random.seed(2)
    assert catalog.draw("log-report", 5).instruction == one
