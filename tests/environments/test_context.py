"""Folding touches observations only, never what it was given, and says when a new segment begins."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.context import OMITTED, TOKEN_LIMIT, discard_all, hierarchical, keep_recent

TEXT = st.text(max_size=30)


@st.composite
def rounds_of_calls(draw):
    """An assistant message with one to three calls and their results."""
    ids = [f"call-{draw(st.integers(0, 10**9))}" for _ in range(draw(st.integers(1, 3)))]
    calls = [{"id": name, "type": "function", "function": {"name": "open", "arguments": {}}} for name in ids]
    thought = {"role": "assistant", "content": "", "reasoning_content": draw(TEXT), "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": name, "content": draw(TEXT)} for name in ids]
    return [thought, *results]


@st.composite
def histories(draw):
    """A prompt, then rounds, answers and further user messages."""
    messages = [{"role": "system", "content": draw(TEXT)}, {"role": "user", "content": draw(TEXT)}]
    for kind in draw(st.lists(st.sampled_from(["round", "round", "round", "turn"]), max_size=14)):
        if kind == "round":
            messages += draw(rounds_of_calls())
        else:
            messages += [
                {"role": "assistant", "content": draw(TEXT)},
                {"role": "user", "content": draw(TEXT)},
            ]
    return messages


def words(messages):
    return sum(len(message["content"]) for message in messages)


def history(rounds, result="x" * 100):
    messages = [{"role": "user", "content": "task"}]
    for number in range(rounds):
        call = {"id": str(number), "type": "function", "function": {"name": "open", "arguments": {}}}
        messages.append(
            {"role": "assistant", "content": "", "reasoning_content": f"r{number}", "tool_calls": [call]}
        )
        messages.append({"role": "tool", "tool_call_id": str(number), "content": f"{number} {result}"})
    return messages


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(0, 6), st.integers(0, 600))
def test_folding_touches_observations_only_and_never_its_input(messages, rounds, limit):
    before = copy.deepcopy(messages)
    folded = keep_recent(messages, rounds)
    assert len(folded.messages) == len(messages)
    for old, new in zip(messages, folded.messages, strict=True):
        assert {**new, "content": ""} == {**old, "content": ""}  # order, roles, ids, reasoning, calls
        assert new == old or (old["role"] == "tool" and new["content"] == OMITTED)
    for result in (folded, discard_all(messages, words, limit), hierarchical(messages, words, rounds, limit)):
        assert messages == before
        assert result.new_segment == (result.messages != messages)


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(0, 6))
def test_exactly_the_results_before_the_last_rounds_are_omitted(messages, rounds):
    left = rounds
    for old, new in zip(reversed(messages), reversed(keep_recent(messages, rounds).messages), strict=True):
        if old["role"] == "tool":
            assert new["content"] == (old["content"] if left > 0 else OMITTED)
        left -= bool(old.get("tool_calls"))


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(0, 6), st.integers(0, 600))
def test_a_folded_context_folds_to_itself(messages, rounds, limit):
    for fold in (
        lambda given: keep_recent(given, rounds),
        lambda given: discard_all(given, words, limit),
        lambda given: hierarchical(given, words, rounds, limit),
    ):
        once = fold(messages).messages
        assert fold(once) == (once, False)


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(0, 600))
def test_discarding_leaves_the_dialogue_and_no_round(messages, limit):
    result = discard_all(messages, words, limit)
    if words(messages) <= limit:
        assert result == (messages, False)
    else:
        kept = [m for m in messages if m["role"] in ("system", "user") or "tool_calls" not in m]
        assert result.messages == [m for m in kept if m["role"] != "tool"]


def test_five_rounds_and_32k_tokens_are_the_defaults():
    assert TOKEN_LIMIT == 32 * 1024
    folded, new_segment = keep_recent(history(7))
    assert new_segment
    assert [m["content"] == OMITTED for m in folded if m["role"] == "tool"] == [True] * 2 + [False] * 5
    assert keep_recent(history(5)) == (history(5), False)
    assert discard_all(history(3), lambda messages: TOKEN_LIMIT) == (history(3), False)
    assert discard_all(history(3), lambda messages: TOKEN_LIMIT + 1) == (history(0), True)


def test_hierarchical_discards_only_what_keeping_recent_leaves_too_long():
    messages = history(8)
    assert hierarchical(messages, words, 5, words(keep_recent(messages).messages)).messages == (
        keep_recent(messages).messages
    )
    shorter = words(keep_recent(messages).messages) - 1
    assert hierarchical(messages, words, 5, shorter) == (history(0), True)


def test_an_agent_that_folds_begins_a_segment_each_time_something_was_taken_away():
    messages, marks = history(0), []
    for number in range(8):
        messages = messages + history(8)[1 + 2 * number : 3 + 2 * number]
        messages, new_segment = keep_recent(messages, 5)
        marks.append(new_segment)
    assert marks == [False] * 5 + [True] * 3


def test_a_prompt_beyond_the_limit_is_not_discarded():
    prompt = [{"role": "user", "content": "x" * 50}]
    assert discard_all(prompt, words, 10) == (prompt, False)


def test_a_negative_number_of_rounds_is_refused():
    with pytest.raises(ValueError, match="rounds is -1"):
        keep_recent(history(1), -1)
