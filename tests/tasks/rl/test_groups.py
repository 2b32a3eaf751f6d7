"""Advantages of a group, and the rule for rollouts whose environment failed."""

import math

import pytest

from tasks.rl.groups import centred, filled, is_dead, normalised


def test_advantages_by_hand():
    assert normalised([1.0, 0.0, 0.0, 0.0]) == pytest.approx(
        [math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, rel=1e-5
    )
    assert centred([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]
    assert normalised([0.5, 0.5]) == [0.0, 0.0] and is_dead([0.5, 0.5]) and not is_dead([0.5, 0.0])


def test_a_failed_environment_is_left_out_and_the_group_filled_up():
    assert filled("abcd", [1.0, None, 0.0, 0.5]) == (list("acda"), [1.0, 0.0, 0.5, 1.0])
    assert filled("abcde", [None, None, 0.0, 0.5, 1.0]) == (list("cdecd"), [0.0, 0.5, 1.0, 0.0, 0.5])
    assert filled("ab", [1.0, 0.0]) == (["a", "b"], [1.0, 0.0])


@pytest.mark.parametrize("rewards", [[None], [1.0, None], [1.0, None, None], [None] * 4, []])
def test_half_a_group_or_less_is_dropped(rewards):
    assert filled(range(len(rewards)), rewards) is None


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward):
    with pytest.raises(ValueError, match="says None"):
        filled("ab", [reward, 1.0])
