"""How an episode takes answers, corrections, tool calls and malformed messages."""

import asyncio
import json
import random

import pytest

from environments.catalog import environments
from environments.episode import CORRECTED, WRONG, final_answer
from environments.interface import MODES, play

CATALOG = environments()


def say(content):
    return {"role": "assistant", "content": content}


def call(name, arguments, **more):
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function, **more}],
    }


def outcome(name, answers, seed=3):
    environment, family = name.split("/")
    task = CATALOG[environment].make_task(family, seed)
    return asyncio.run(play(CATALOG[environment], task, answers(task)))


def test_final_answer_is_the_last_line_with_even_spaces():
    assert final_answer("so it is\n\n  d  c b \n \n") == "d c b"
    assert final_answer("") == final_answer(None) == final_answer([1]) == ""


@pytest.mark.parametrize(
    "wrap, reward", [("{}", 1), ("thus:\n {} \n", 1), ("{}.", 0), ("it is {}", 0), ("{}\nx", 0)]
)
def test_answers_are_exact_up_to_white_space(wrap, reward):
    _, verdict = outcome("arithmetic/add2", lambda task: [say(wrap.format(task.truth["answers"][0]))])
    assert verdict.reward == reward


def test_a_wrong_answer_is_sent_back_once():
    def answers(task):
        return [say("wrong"), *(say(text) for text in task.truth["answers"])]

    messages, verdict = outcome("dialogue/next", answers)
    assert messages[2] == {"role": "user", "content": WRONG}
    assert verdict.reward == CORRECTED
    messages, verdict = outcome("dialogue/next", lambda task: [say("wrong"), say("wrong"), *answers(task)])
    assert verdict.reward == 0.0 and len(messages) == 4
    _, verdict = outcome("arithmetic/add2", answers)
    assert verdict.reward == 0.0


def test_an_unfinished_dialogue_scores_zero():
    _, verdict = outcome("dialogue/next", lambda task: [say(task.truth["answers"][0])])
    assert (verdict.reward, verdict.reason) == (0.0, "the episode ended before the last answer")


@pytest.mark.parametrize("form", [dict, json.dumps])
def test_calls_are_answered_in_either_form_and_keep_their_id(form):
    messages, verdict = outcome(
        "tools/calc",
        lambda task: [
            call("calc", form(task.truth["calls"][0][1]), id="call_7"),
            say(task.truth["answers"][0]),
        ],
    )
    assert verdict.reward == 1.0
    assert messages[2] == {
        "role": "tool",
        "content": messages[-1]["content"],
        "tool_call_id": "call_7",
    }


@pytest.mark.parametrize(
    "message, reason",
    [
        (call("calk", {"e": "1+1"}), "there is no tool 'calk'"),
        (call("calc", {"x": "1+1"}), "calc takes the arguments e"),
        (call("calc", {"e": "1+1", "f": "2"}), "calc takes the arguments e"),
        (call("calc", "{e: 1"), "the arguments of calc are not JSON"),
        (call("calc", ["1+1"]), "calc takes the arguments e"),
        (call(None, {}), "there is no tool None"),
        (call(["calc"], {}), "there is no tool"),
        ({"role": "assistant", "content": "", "tool_calls": ["calc"]}, "there is no tool None"),
    ],
)
def test_a_malformed_call_ends_the_episode_with_zero(message, reason):
    def answers(task):
        return [message, *CATALOG["tools"].oracle(task, "off")]

    messages, verdict = outcome("tools/calc", answers)
    assert verdict.reward == 0.0 and reason in verdict.reason
    assert len(messages) == 2


def test_a_call_where_there_are_no_tools_scores_zero():
    _, verdict = outcome("arithmetic/add2", lambda task: [call("calc", {"e": "1+1"})])
    assert verdict.reward == 0.0


def test_endless_calls_end():
    messages, verdict = outcome("tools/calc", lambda task: [call("calc", {"e": "1+1"})] * 50)
    assert verdict.reward == 0.0 and "more than 8 tool calls" in verdict.reason
    assert len(messages) < 20


@pytest.mark.parametrize("argument", ["7", "1/1", "__import__('os')", "9" * 40 + "*2", ""])
def test_a_refused_expression_is_an_error_message_and_not_the_end(argument):
    def answers(task):
        return [call("calc", {"e": argument}), *CATALOG["tools"].oracle(task, "off")]

    messages, verdict = outcome("tools/calc", answers)
    assert messages[2]["content"].startswith("error")
    assert verdict.reward == 1.0


@pytest.mark.parametrize("name", ["tools/calc", "tools/chain", "tools/calendar", "lookup/fact", "lookup/hop",
                                  "lookup/two", "dialogue/next", "dialogue/total"])  # fmt: skip
def test_mistakes_are_wrong_and_can_be_put_right(name):
    environment, family = CATALOG[name.split("/")[0]], name.split("/")[1]

    async def check(task, mode):
        wrong = environment.mistake(task, mode, random.Random(task.seed))
        right = environment.oracle(task, mode)
        assert wrong != right[0]
        assert bool(wrong.get("reasoning_content")) == (mode != "off")
        _, corrected = await play(environment, task, [wrong, *right])
        assert corrected.reward in (CORRECTED, 1.0)
        _, left = await play(environment, task, [wrong])
        assert left.reward == 0.0

    async def check_all():
        for seed in range(100):
            for mode in MODES:
                await check(environment.make_task(family, seed), mode)

    asyncio.run(check_all())


def test_kept_thinking_is_shorter_than_thinking_anew():
    for seed in range(20):
        task = CATALOG["dialogue"].make_task("next", seed)
        anew, kept = (CATALOG["dialogue"].oracle(task, mode) for mode in ("interleaved", "preserved"))
        assert anew[0] == kept[0]
        assert [m["content"] for m in anew] == [m["content"] for m in kept]
        assert len(kept[1]["reasoning_content"]) < len(anew[1]["reasoning_content"])
        assert anew[0]["reasoning_content"].endswith(kept[1]["reasoning_content"])


def test_stepping_after_the_end_is_a_fault():
    async def run():
        task = CATALOG["table"].make_task("max", 1)
        episode = CATALOG["table"].episode()
        await episode.reset(task)
        await episode.step(say("0"))
        await episode.step(say("0"))

    with pytest.raises(RuntimeError, match="over"):
        asyncio.run(run())
