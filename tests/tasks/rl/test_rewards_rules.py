"""Rules by hand, each pathology, and how parts become one reward."""

import random

import pytest
from pydantic import ValidationError

from environments.catalog import environments
from pipeline.recipe.rl import GeneralRlSection
from tasks.rl.rewards import rules
from tasks.rl.rewards.combine import combined
from tasks.rl.rewards.rules import Attempt, calls_are_exact, judge_by_rules

CATALOG = environments()
TOOLS = CATALOG["tools"]


def assistant(content="", thinking=None, *calls):
    message = {"role": "assistant", "content": content}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [{"function": {"name": n, "arguments": a}} for n, a in calls]
    return message


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0), ("the file is new", 0), ("1000000", 0), ("aaaa", 0), ("no no no", 0),
        ("ha" * 10, 1), ("the key the key the key the key ", 1), ("abc" + "xy" * 6, 12 / 15),
        ("\n".join(["same line"] * 9), 80 / 89), ("0,1,2,3,4,5,6,7,8,9", 0),
    ],
)  # fmt: skip
def test_repetition(text, share):
    assert rules.repetition(text) == pytest.approx(1 - share)


def test_repetition_of_long_answers_is_found_in_bounded_time():
    rng = random.Random(3)
    text = "".join(rng.choices("abcdefgh ", k=100_000))
    assert rules.repetition(text) > 0.9
    assert rules.repetition("file " * 100_000) < 0.05


@pytest.mark.parametrize(
    ("asked", "text", "share"),
    [
        ("what is it", "the file", 1), ("what is it", "12 + 3", 1), ("what is it", "файл", 0),
        ("what is it", "ab файл", 2 / 6), ("что это", "файл", 1), ("これは何", "名前です", 1),
        ("12?", "file", 1), ("what", "ab\ufffd\ufffd", 0.5),
    ],
)  # fmt: skip
def test_language(asked, text, share):
    assert rules.language(asked, text) == pytest.approx(share)


def test_length():
    values = [rules.length(tokens, 20, 40) for tokens in (0, 20, 25, 30, 40, 90)]
    assert values == [1, 1, 0.75, 0.5, 0, 0]


def test_thinking_where_the_mode_wants_it_and_no_tag_as_text():
    both = [assistant("", "a", ("calc", {"e": "1+1"})), assistant("2", "2")]
    assert rules.thinking(both, "interleaved") == 1 and rules.thinking(both, "off") == 0
    assert rules.thinking([assistant("2")], "off") == 1 and rules.thinking([assistant("2")], "preserved") == 0
    for name in ("<think>", "</think>", "<tool_call>", "<|user|>"):
        assert rules.thinking([assistant(f"2 {name}")], "off") == 0
        assert rules.thinking([assistant("2", f"{name} 2")], "interleaved") == 0


@pytest.mark.parametrize("family", TOOLS.families)
def test_calls_must_be_well_formed_and_exact(family):
    task = TOOLS.make_task(family, 11)
    oracle = TOOLS.oracle(task, "off")
    assert calls_are_exact(oracle, oracle, task)
    first = oracle[0]["tool_calls"][0]["function"]
    spoilt = [
        {**first, "name": "nothing"}, {**first, "arguments": {}}, {**first, "arguments": "{"},
        {**first, "arguments": {**first["arguments"], "more": 1}},
        {**first, "arguments": dict.fromkeys(first["arguments"], "0+0")},
    ]  # fmt: skip
    for function in spoilt:
        wrong = [{**oracle[0], "tool_calls": [{"function": function}]}, *oracle[1:]]
        assert not calls_are_exact(wrong, oracle, task), function
    assert not calls_are_exact(oracle[1:], oracle, task)
    assert not calls_are_exact([oracle[0], *oracle], oracle, task)


def test_rules_apply_where_they_say_something():
    task = CATALOG["string"].make_task("copy", 1)
    right = task.truth["answers"][0]
    messages = [*task.messages, assistant(right, "k")]
    found = judge_by_rules(Attempt(task, "interleaved", messages, True, 10), (), 20, 40)
    assert found == {"format": 1, "thinking": 1, "language": 1, "repetition": 1, "length": 1}
    messages = [*task.messages, assistant("имя " * 20, "k")]
    found = judge_by_rules(Attempt(task, "interleaved", messages, False, 40), (), 20, 40)
    assert found["format"] == 0 and found["length"] == 0
    assert found["language"] < 0.1 and found["repetition"] < 0.1


def test_tool_results_do_not_count_as_what_was_asked():
    """A foreign word that a tool gave back is no licence to write in its language."""
    task = TOOLS.make_task("calc", 1)
    messages = [*task.messages, assistant("", "x"), {"role": "tool", "content": "имя"}, assistant("имя", "x")]
    assert judge_by_rules(Attempt(task, "interleaved", messages, True, 5), (), 20, 40)["language"] < 0.5


WEIGHTS = {"task": 2.0, "model": 1.0, "tools": 1.0, "language": 0.0}


@pytest.mark.parametrize(
    ("parts", "reward"),
    [
        ({"task": 1.0, "format": 1.0, "model": 0.5, "tools": 0.0}, 2.5 / 4),
        ({"task": 1.0, "format": 1.0, "model": 0.5}, 2.5 / 3),  # no tools here
        ({"task": 1.0, "format": 1.0, "model": None}, None),  # it failed
        ({"task": 1.0, "format": 1.0, "model": 1.0, "language": None}, 1.0),  # it failed, unheard
        ({"task": None, "format": 1.0, "model": 1.0}, None),  # the environment failed
        ({"task": 1.0, "format": 0.0, "model": 1.0}, 0.0),  # outside of the format
        ({"task": None, "format": 0.0}, None),
    ],
)
def test_parts_become_one_reward(parts, reward):
    found = combined(parts, WEIGHTS)
    assert found == (reward if reward is None else pytest.approx(reward))


def section(**changed):
    values = {
        "steps": 1, "optimizer": {"muon_lr": 0.1, "adamw_lr": 0.1}, "families": {"string/copy": 1.0},
        "rollouts": {"prompts_per_step": 1, "rollouts_per_prompt": 2, "max_new_tokens": 8},
        "modes": {"off": 1.0}, "sequence_length": 128, "micro_batch": 1, "rewards": {"task": 1.0},
        "long_from": 10, "long_until": 20,
    }  # fmt: skip
    return GeneralRlSection(**{**values, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rewards": {"task": 0.0}}, "no weight is above 0"),
        ({"rewards": {"task": 1.0, "judge": 1.0}}, "judge"),
        ({"reward_model": {"pairs": 4, "lr": 0.1}}, "rewards.model and the section reward_model go together"),
        ({"rewards": {"taste": 1.0}}, "rewards"),
        ({"long_from": 20}, "long_from must be below long_until"),
    ],
)
def test_a_section_whose_parts_do_not_fit_is_refused(changed, words):
    section()
    with pytest.raises(ValidationError, match=words):
        section(**changed)
