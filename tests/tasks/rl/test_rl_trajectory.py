"""Segments keep context and samples apart; trajectories know how old they are and come back from disk."""

import json

import numpy as np
import pytest

from tasks.rl.trajectory import Segment, Trajectory, Turn, mean_reward


def trajectory(*segments, reward=1.0):
    return Trajectory("r1", "g1", "t1", "tools", "calc", "interleaved", list(segments), reward, "right")


def segment(*versions):
    made = Segment()
    made.read([1, 2, 3])
    made.turns.append(Turn("start", 0, 3, 1000.0, 1000.5))
    made.sample([4] * len(versions), [-0.5] * len(versions), list(versions))
    made.read([5])
    return made


def test_a_segment_keeps_a_value_for_each_token():
    made = segment(7, 8)
    assert made.ids == [1, 2, 3, 4, 4, 5] and made.sampled == [False] * 3 + [True] * 2 + [False]
    assert made.versions == [-1, -1, -1, 7, 8, -1] and made.logprobs == [0, 0, 0, -0.5, -0.5, 0]
    assert len(made) == 6 and made.oldest == 7 and Segment().oldest is None
    with pytest.raises(ValueError, match="2 tokens came with 1 log-probs"):
        made.sample([1, 2], [-1.0], [1])


def test_a_cut_takes_the_turns_behind_it_along():
    made = segment(7, 8)
    made.turns.append(Turn("append", 5, 6, 1001.0, 1001.5))
    made.sample([9], [-0.1], [8])
    made.cut(6)
    assert [turn.kind for turn in made.turns] == ["start"]
    made.cut(3)
    assert made.turns == []


def test_staleness_is_that_of_the_oldest_token():
    assert trajectory(segment(5, 6), segment(3)).staleness(9) == 6
    assert trajectory(segment()).staleness(9) == 0
    assert trajectory(segment(5, 6), segment(3)).tokens == 3


def test_a_line_has_all_but_the_experts():
    one = segment(1, 2)
    one.experts = np.zeros((len(one), 1, 2), np.int16)
    line = json.loads(json.dumps(trajectory(one, reward=None).to_record()))
    assert line["segments"] == [
        {
            "ids": one.ids, "sampled": one.sampled, "logprobs": one.logprobs, "versions": one.versions,
            "turns": [{"kind": "start", "place": 0, "answer": 3, "began": 1000.0, "ended": 1000.5}],
        }
    ]  # fmt: skip
    assert (line["id"], line["reward"], line["reason"]) == ("r1", None, "right") and one.experts is not None


def test_the_mean_leaves_out_what_has_no_reward():
    assert mean_reward([trajectory(reward=1.0), trajectory(reward=None), trajectory(reward=0.0)]) == 0.5
    assert mean_reward([trajectory(reward=None)]) is None
