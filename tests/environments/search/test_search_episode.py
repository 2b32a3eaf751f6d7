"""Attempts: the oracle solves with its tools, nothing scores 0, bad calls end with a reason, pages."""

import asyncio
import json

import pytest

from environments.episode import answer, call_message
from environments.interface import MODES, Task, play
from environments.sandbox.interface import SandboxError
from environments.search.corpus import Document
from environments.search.environment import Search
from environments.search.episode import PAGE, RESULTS, show_matches, show_page
from environments.search.python_sandbox import python_sandboxes
from pipeline.errors import UserError
from tests.sandboxes import backend_or_skip, image_cache

FAMILIES = (*Search.families, *Search.evaluation_only)


def made(search, family, count=6):
    return [search.make_task(family, seed, family in search.evaluation_only) for seed in range(count)]


def played(search, task, *answers):
    return asyncio.run(play(search, task, answers))


def steps(search, task, *messages):
    """The environment's replies and the verdict."""

    async def run():
        episode = search.episode()
        await episode.reset(task)
        replies = [await episode.step(message) for message in messages]
        return replies, await episode.verify()

    return asyncio.run(run())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_scores_one_and_sees_all_it_says(search, family):
    for task in made(search, family):
        for mode in MODES:
            answers = search.oracle(task, mode)
            messages, verdict = played(search, task, *answers)
            assert verdict.reward == 1.0, verdict
            assert all(bool(a.get("reasoning_content")) == (mode != "off") for a in answers)
        shown = [message["content"] for message in messages if message["role"] == "tool"]
        for (_, document, line), page in zip(search.evidence(task), shown[1::2], strict=True):
            stated = search.corpus.documents[document].lines[line - 1]
            assert page.splitlines()[1] == f"{line}: {stated}"


def test_the_evidence_names_both_ends_of_each_statement(search):
    for task in made(search, "links3"):
        path = task.truth["path"]
        for (_, document, line), (_, *terms) in zip(
            search.evidence(task), task.truth["question"]["statements"], strict=True
        ):
            stated = search.corpus.documents[document].lines[line - 1]
            for term in terms:
                entity = path[term] if isinstance(term, int) else term
                assert search.corpus.entities[entity].name in stated


def test_nothing_and_wrong_answers_score_zero(search):
    for task in made(search, "links2") + made(search, "attribute3"):
        wrong = search.corpus.entities[task.truth["path"][-1]].name
        everything = ", ".join(entity.name for entity in search.corpus.entities.values())
        for said in ("", " \n ", "?", wrong, everything, f"{task.truth['answer']} or {wrong}"):
            assert played(search, task, answer(None, said))[1].reward == 0.0, said
        assert played(search, task)[1].reward == 0.0
        assert played(search, task, {"role": "assistant", "content": None})[1].reward == 0.0


def test_a_right_answer_may_be_an_alias_in_any_spelling_on_the_last_line(search):
    task = next(t for t in made(search, "links2", 20) if len(t.truth["answers"]) > 1)
    name = task.truth["answer"]
    for said in (
        name,
        name.upper(),
        f"  {name}. ",
        f"Because of the wolf:\n\n**{name}**\n",
        f"the kingdom of {name}",
    ):
        assert played(search, task, answer("thought", said))[1].reward == 1.0, said
    assert played(search, task, answer(None, f"{name}\nor not"))[1].reward == 0.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"name": "google", "arguments": {"query": "x"}}, "there is no tool 'google'"),
        ({"name": "search", "arguments": {}}, "search takes the arguments query"),
        ({"name": "search", "arguments": {"query": "x", "k": 9}}, "search takes the arguments query"),
        ({"name": "search", "arguments": "{"}, "the arguments of search are not JSON"),
        ({"name": "search", "arguments": "[]"}, "search takes the arguments query"),
        ({"name": "search", "arguments": {"query": 7}}, "query of search is a text"),
        ({"name": "open", "arguments": {"document": "a", "line": "two"}}, "line of open is a whole number"),
        ({"name": "open", "arguments": {"document": "a", "line": True}}, "line of open is a whole number"),
        ({"name": "open", "arguments": {"document": "a", "line": 1.5}}, "line of open is a whole number"),
        ({"name": "find", "arguments": {"document": "a"}}, "find takes the arguments document, text"),
        ({"name": "python", "arguments": {"code": "1"}}, "there is no tool 'python'"),
        ("search", "there is no tool None"),
        (None, "there is no tool None"),
    ],
)
def test_a_malformed_call_ends_the_episode_with_its_reason(search, call, said):
    task = search.make_task("links2", 0)
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    if not isinstance(call, dict):
        message["tool_calls"] = [call]
    replies, verdict = steps(search, task, message)
    assert replies[0].done and (verdict.reward, verdict.reason) == (0.0, said)


def test_after_the_end_no_step_is_taken(search):
    async def run():
        episode = search.episode()
        task = search.make_task("links2", 0)
        await episode.reset(task)
        await episode.step(answer(None, "x"))
        with pytest.raises(RuntimeError, match="reset it"):
            await episode.step(answer(None, "x"))
        assert await episode.reset(task) == list(task.messages)
        assert (await episode.step(answer(None, task.truth["answer"]))).done
        return await episode.verify()

    assert asyncio.run(run()).reward == 1.0


def test_budgets_of_turns_and_calls_end_an_attempt(folder):
    search = Search(folder, turns=3, calls=4)
    task = search.make_task("links2", 0)
    look = call_message(None, "search", query="lion")
    replies, verdict = steps(search, task, look, look, answer(None, task.truth["answer"]))
    assert verdict.reward == 1.0
    replies, verdict = steps(search, task, look, look, look)
    assert [reply.done for reply in replies] == [False, False, True]
    assert (verdict.reward, verdict.reason) == (0.0, "no answer in 3 turns")
    many = {**look, "tool_calls": look["tool_calls"] * 5}
    assert steps(search, task, many)[1].reason == "more than 4 tool calls"


def test_each_of_several_calls_gets_its_result(search):
    message = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"query": "lion"}'}},
        {"id": "b", "type": "function", "function": {"name": "open", "arguments": {"document": "no such"}}},
    ]}  # fmt: skip
    (reply,), _ = steps(search, search.make_task("links2", 0), message)
    assert [m["tool_call_id"] for m in reply.messages] == ["a", "b"]
    lines = reply.messages[0]["content"].splitlines()
    assert len(lines) == RESULTS and all("| line " in line and "lion" in line for line in lines)
    assert reply.messages[1]["content"] == "there is no document 'no such'"
    assert not reply.done


def test_results_can_be_empty(search):
    (reply,), _ = steps(search, search.make_task("links2", 0), call_message(None, "search", query="xyzzy"))
    assert reply.messages[0]["content"] == "no document has these words"


def test_pages_follow_one_another_to_the_end():
    document = Document("long", "A long one", "\n".join(f"text {n}" for n in range(1, 2 * PAGE + 6)), "s")
    seen = []
    for first in (1, PAGE + 1, 2 * PAGE + 1):
        head, *lines = show_page(document, first).splitlines()
        assert head == f"A long one (long), lines {first} to {first + len(lines) - 1} of {2 * PAGE + 5}"
        seen += lines
    assert seen == [f"{n}: text {n}" for n in range(1, 2 * PAGE + 6)]
    for beyond in (0, -1, 2 * PAGE + 6):
        assert show_page(document, beyond) == f"long has the lines 1 to {2 * PAGE + 5}"


def test_a_line_number_may_be_text_and_may_be_left_out(search):
    document = next(iter(search.corpus.documents))
    task = search.make_task("links2", 0)
    pages = [
        steps(search, task, call_message(None, "open", document=document, **more))[0][0].messages[0][
            "content"
        ]
        for more in ({}, {"line": 1}, {"line": " 1 "})
    ]
    assert pages[0] == pages[1] == pages[2] == show_page(search.corpus.documents[document], 1)


def test_find_gives_lines_and_offsets_of_literal_text():
    text = "The Red\nriver (old) flows.\nred   River: no.\nRED river"
    document = Document("d", "D", text, "s")
    lines = show_matches(document, "red river").splitlines()
    offsets = [int(line.split("offset ")[1].split(":")[0]) for line in lines]
    assert offsets == [4, 27, 44]
    assert [text[o : o + 3].lower() for o in offsets] == ["red"] * 3
    assert [line.split(",")[0] for line in lines] == ["line 1", "line 3", "line 4"]
    assert show_matches(document, "(old)") == "line 2, offset 14: river (old) flows."
    assert show_matches(document, "o.d") == "d does not contain 'o.d'"  # literal, no pattern
    assert show_matches(document, "  ") == "d does not contain '  '"
    assert len(show_matches(Document("d", "D", "x " * 50, "s"), "x").splitlines()) == 10


def test_a_stored_task_is_played_by_another_process_with_the_same_corpus_alone(folder, search, world):
    task = Task.from_record(json.loads(json.dumps(search.make_task("shared3", 1).to_record())))
    other = Search(folder)
    assert played(other, task, *other.oracle(task, "interleaved"))[1].reward == 1.0
    with pytest.raises(UserError, match="was made from another search corpus than realms"):
        played(Search(world(seed=8).corpus()), task)


def test_the_mistake_costs_nothing(search):
    task = search.make_task("links2", 3)
    wrong = search.mistake(task, "interleaved", None)
    assert played(search, task, wrong, *search.oracle(task, "interleaved"))[1].reward == 1.0


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return image_cache(tmp_path_factory)


def backend(images):
    return backend_or_skip(images, None)


def attempt_with_python(folder, images, *codes):
    """The results of programs run in one episode with a real sandbox."""

    async def run():
        search = Search(folder, start_sandbox=python_sandboxes(backend(images)))
        task = search.make_task("links2", 0)
        assert [tool["function"]["name"] for tool in task.tools] == ["search", "open", "find", "python"]
        return await play(search, task, [call_message(None, "python", code=code) for code in codes])

    messages, verdict = asyncio.run(run())
    assert verdict.reward == 0.0  # nothing was answered
    return [message["content"] for message in messages if message["role"] == "tool"]


def test_python_runs_in_a_sandbox_that_lasts_an_episode(folder, images):
    write, read = "open('/tmp/kept', 'w').write('yes')", "print(open('/tmp/kept').read())"
    codes = ("print(2 +\n  2)", write, read, "import sys; sys.exit(3)", "1 / 0")
    results = attempt_with_python(folder, images, *codes)
    assert results[:3] == ["4\n", "", "yes\n"]
    assert results[3] == "\nexit status 3"
    assert "ZeroDivisionError" in results[4] and results[4].endswith("exit status 1")
    assert "FileNotFoundError" in attempt_with_python(folder, images, "open('/tmp/kept')")[0]
    assert attempt_with_python(folder, images, "print('\ud800')")[0] == "?\n"


def test_python_sees_neither_the_corpus_nor_a_network(folder, images):
    code = f"import os, socket\nprint(os.path.exists({str(folder)!r}))\n"
    code += "socket.create_connection(('1.1.1.1', 53), 2)"
    (result,) = attempt_with_python(folder, images, code)
    assert result.startswith("False\n") and "OSError" in result


@pytest.mark.parametrize("fault", [SandboxError("no memory for it"), None])
def test_a_broken_sandbox_is_no_statement_about_the_policy(folder, fault):
    async def start():
        raise fault

    search = Search(folder, start_sandbox=start if fault else None)
    task = Search(folder, start_sandbox=start).make_task("links2", 0)
    _, verdict = played(search, task, call_message(None, "python", code="1"))
    assert verdict.reward is None
    assert verdict.reason.startswith("the sandbox failed: " + (str(fault) if fault else "there is none"))


def test_many_episodes_run_at_once(search):
    tasks = [search.make_task("meeting", seed) for seed in range(40)]

    async def run():
        return await asyncio.gather(*(play(search, task, search.oracle(task, "off")) for task in tasks))

    assert [verdict.reward for _, verdict in asyncio.run(run())] == [1.0] * 40
