"""Terminal tasks drafted by a model: a real HTTP server answers as one would, everything else is real."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.drafting import TRIES, ModelDrafter
from data_pipelines.task_building.refining import Refiner
from environments.harbor.task import load_task
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.recipe.data import Drafter
from tests.chat_server import chat_server, said  # noqa: F401 - a fixture
from tests.waiting import free_port

SOLUTION = """\
# Keep the longest line so far.
awk 'length > n { n = length; l = $0 } END { print l }' lines.txt > longest.txt
"""
GOOD = {
    "title": "Longest line",
    "instruction": "Write the longest line of /app/lines.txt to /app/longest.txt.",
    "files": {"lines.txt": "a\nabc\nab\n"},
    "setup": "",
    "solution": SOLUTION,
    "tests": "def test_longest():\n    assert open('/app/longest.txt').read() == 'abc\\n'\n",
    "difficulty": "easy",
}
WRONG = {**GOOD, "solution": "# Keep the first line.\nhead -n 1 lines.txt > longest.txt"}


@pytest.fixture
def server(chat_server):  # noqa: F811
    """``answers``: (status, content), a dict being a model's answer."""

    def reply(body):
        status, content = chat_server.answers.pop(0)
        return said(content=json.dumps(content)) if isinstance(content, dict) else (status, content)

    chat_server.answers, chat_server.reply = [], reply
    return chat_server


def drafter(port: int, scratch, **changes) -> ModelDrafter:
    settings = {"base_url": f"http://127.0.0.1:{port}/v1", "model": "some-model", "licence": "CC0-1.0"}
    return ModelDrafter(Drafter(**{**settings, **changes}), scratch, pause=0.01)


def test_a_rejected_draft_goes_back_with_the_reason_and_comes_repaired(
    server, tmp_path, task_backend, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    server.answers = [(200, WRONG), (200, GOOD)]
    model = drafter(server.server_port, tmp_path)
    refiner = Refiner(task_backend, tmp_path, repeats=1, seconds=120, rounds=2)
    candidate = next(model.candidates("log-report", 0))
    outcome = asyncio.run(refiner.refine(refiner.prepare(candidate)))
    assert outcome.reason == "" and outcome.round == 2
    task = load_task(outcome.folder)
    assert task.instruction == GOOD["instruction"] and task.config.metadata["licence"] == "CC0-1.0"
    assert "some-model" in task.config.metadata["provenance"]
    (headers, first), (_, second) = server.asked
    assert headers["Authorization"] == "Bearer a-key"
    assert first["model"] == "some-model" and [m["role"] for m in first["messages"]] == ["system", "user"]
    assert "log-report" in first["messages"][1]["content"]
    assert second["messages"][:2] == first["messages"]
    assert json.loads(second["messages"][2]["content"]) == WRONG
    told = second["messages"][3]["content"]
    assert "the solution scores 1" in told and "test_longest" in told  # what the tests printed

    # The answers are kept: another run asks nothing.
    again = Refiner(task_backend, tmp_path, repeats=1, seconds=120, rounds=2)
    candidate = next(drafter(server.server_port, tmp_path).candidates("log-report", 0))
    assert asyncio.run(again.refine(again.prepare(candidate))).digest == outcome.digest
    assert len(server.asked) == 2


def test_after_the_last_round_it_is_rejected(server, tmp_path, task_backend):
    server.answers = [(200, WRONG), (200, {**WRONG, "title": "Again"})]
    refiner = Refiner(task_backend, tmp_path, repeats=1, seconds=120, rounds=1)
    candidate = next(drafter(server.server_port, tmp_path).candidates("log-report", 0))
    outcome = asyncio.run(refiner.refine(refiner.prepare(candidate)))
    assert outcome.reason == "the solution scores 1" and len(server.asked) == 2
    assert json.loads(outcome.candidate.draft["answer"])["title"] == "Again"


def test_what_is_no_draft_is_repaired_too(server, tmp_path, task_backend):
    server.answers = [(200, {**GOOD, "tests": "pass"}), (200, GOOD)]
    refiner = Refiner(task_backend, tmp_path, repeats=1, seconds=120, rounds=1)
    candidate = next(drafter(server.server_port, tmp_path).candidates("log-report", 0))
    outcome = asyncio.run(refiner.refine(refiner.prepare(candidate)))
    assert outcome.reason == "" and "no function test_" in server.asked[1][1]["messages"][3]["content"]


def test_the_stage_drafts_by_the_model_of_the_recipe(server, chain, task_backend):
    server.answers = [(200, GOOD)]
    url = f"http://127.0.0.1:{server.server_port}/v1"
    section = {
        "terminal": 1, "families": {"log-report": 1}, "swe": {"tasks": 0}, "repeats": 1,
        "drafter": {"base_url": url, "model": "m", "licence": "CC0-1.0"},
    }  # fmt: skip
    run = chain([{"kind": "folder", "name": "none", "path": "."}], agent_tasks=section)
    run.run("agent_tasks")
    row = json.loads((run.folder("agent_tasks") / "tasks.jsonl").read_text())
    assert row["name"] == "log-report-drafted-0" and row["licence"] == "CC0-1.0" and row["drafts"] == 1
    assert artifacts.verify(run.folder("agent_tasks"))


def ask(model: ModelDrafter) -> str:
    return model._ask({"model": "m", "messages": []})


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.answers = [(503, "starting"), (429, "slowly"), (200, GOOD)]
    assert json.loads(ask(drafter(server.server_port, tmp_path))) == GOOD
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([(500, "no")] * TRIES, rf"does not answer \(status 500, {TRIES} tries\): start it, or set"),
        ([(401, "who are you?")], r"refuses the request \(status 401, .*OPENAI_API_KEY\): 'who are you\?'"),
        ([(200, "<html>hello</html>")], "answers, but not as the OpenAI interface does: '<html>"),
        ([(200, '{"choices": []}')], "not as the OpenAI interface does"),
    ],
)
def test_a_server_that_cannot_draft_is_named(answers, sentence, server, tmp_path):
    server.answers = list(answers)
    with pytest.raises(UserError, match=sentence) as error:
        ask(drafter(server.server_port, tmp_path))
    assert f"http://127.0.0.1:{server.server_port}/v1" in str(error.value) and "\n" not in str(error.value)
    assert server.answers == []


def test_an_empty_answer_is_the_draft_s_fault(server, tmp_path):
    server.answers = [(200, '{"choices": [{"message": {"content": " "}}]}')]
    with pytest.raises(Rejected, match="answer is empty"):
        ask(drafter(server.server_port, tmp_path))


def test_a_server_that_is_away_or_hangs_is_named(tmp_path):
    with pytest.raises(UserError, match=rf"{TRIES} tries"):
        ask(drafter(free_port(), tmp_path))
    listener = ThreadingHTTPServer(
        ("127.0.0.1", 0), BaseHTTPRequestHandler
    )  # takes connections, answers none
    try:
        with pytest.raises(UserError, match="timed out"):
            ask(drafter(listener.server_port, tmp_path, seconds=0.05))
    finally:
        listener.server_close()


def test_a_model_sees_no_family_that_is_held_out(tmp_path):
    with pytest.raises(UserError, match="cron-times is kept for evaluation"):
        next(drafter(1, tmp_path).candidates("cron-times", 0))
