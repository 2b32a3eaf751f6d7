"""Long-context items fit their length, hold their needles, and keep evaluation's keys to evaluation."""

import random

import pytest

from environments.keys import KEYS
from environments.long_context import TASKS, make_item, score
from pipeline.errors import UserError

HAYSTACK = [f"line {index} of the haystack {'x' * (index % 50)}" for index in range(300)]


def measure(text):
    return len(text)


def item(task, seed, target=1500, **more):
    return make_item(task, random.Random(seed), HAYSTACK, measure, target, **more)


def keys_asked(found):
    question = found.prompt.rpartition("\n")[2]
    return {key for key in KEYS if key in question}


@pytest.mark.parametrize("task", TASKS)
def test_items_fill_their_length_and_no_more(task):
    for seed in range(60):
        for target in (200, 1500):
            found = item(task, seed, target)
            size = len(found.prompt + found.completion)
            assert size <= target
            assert size > target - 140
            assert score(found.answers, found.completion) == 1.0
            assert 0 <= found.depth < 1


@pytest.mark.parametrize("task", TASKS)
def test_the_needle_stands_at_its_depth_and_nowhere_else(task):
    depths = []
    for seed in range(60):
        found = item(task, seed)
        lines = found.prompt.split("\n")[:-1]
        at = round(found.depth * len(found.prompt))
        needle = found.prompt[at:].split("\n")[0]
        assert at == 0 or found.prompt[at - 1] == "\n"
        assert lines.count(needle) == 1
        assert "=" in needle and needle.split("=")[0] in KEYS
        depths.append(found.depth)
    assert min(depths) < 0.3 and max(depths) > (0.4 if task in ("multi_value", "variable_tracking") else 0.7)


@pytest.mark.parametrize("task", TASKS)
def test_answers_follow_from_the_lines(task):
    for seed in range(60):
        found = item(task, seed)
        *lines, question = found.prompt.split("\n")
        pairs = [line.split("=") for line in lines if line.count("=") == 1]
        if task == "variable_tracking":
            value, first = question.rstrip(",").split(": ")
            holders = [first]
            assert [first, value] in pairs
            for name, source in pairs:
                if source in holders:
                    holders.append(name)
            assert tuple(holders[1:]) == found.answers
            continue
        asked = [key for key in keys_asked(found)]
        values = {value for key, value in pairs if key in asked}
        if task == "multi_hop":
            values = {value for key, value in pairs if key in values}
        assert values == set(found.answers)


def test_training_and_evaluation_ask_for_other_keys():
    asked = {True: set(), False: set()}
    for heldout, keys in asked.items():
        for task in TASKS:
            for seed in range(80):
                keys |= keys_asked(item(task, seed, heldout=heldout))
    assert not asked[True] & asked[False]
    assert len(asked[True]) > 20 and len(asked[False]) > 60


def test_lines_that_look_like_a_needle_are_left_out():
    forged = [f"{key}=000" for key in KEYS] + ["plain line"]
    for seed in range(30):
        found = make_item("needle", random.Random(seed), forged, measure, 800)
        question = found.prompt.rpartition("\n")[2]
        assert found.prompt.count(question) == 2


def test_same_seed_same_item_and_bad_requests_are_explained():
    assert item("needle", 4) == item("needle", 4) != item("needle", 5)
    with pytest.raises(UserError, match="no long-context task 'niddle'.*needle"):
        item("niddle", 1)
    with pytest.raises(UserError, match="does not fit into 8 tokens"):
        item("multi_key", 1, target=8)
    with pytest.raises(UserError, match="none"):
        make_item("needle", random.Random(1), [], measure, 500)


def test_score_is_the_share_found():
    assert score(("123", "456"), "it is 456.") == 0.5
