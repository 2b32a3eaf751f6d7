"""The error policy: what is trained on, what is left out, and that all of it is counted."""

import pytest

from tasks.rl.group import Group
from tasks.rl.groups import centred, normalised
from tasks.rl.selection import select
from tasks.rl.trajectory import Segment, Trajectory


def trajectory(name, reward, tokens=4, version=5, segments=1, context=2):
    made = []
    for _ in range(segments):
        segment = Segment()
        segment.read([1] * context)
        segment.sample([2] * tokens, [-1.0] * tokens, [version] * tokens)
        made.append(segment)
    return Trajectory(name, "g", "t", "tools", "calc", "off", made, reward, "")


def chosen(*groups, version=5, advantages=centred, max_staleness=2, length=100):
    made = [Group(n, list(trajectories)) for n, trajectories in enumerate(groups)]
    return select(made, version, advantages, max_staleness=max_staleness, length=length)


def test_every_rollout_weighs_the_same_whatever_its_length():
    group = [
        trajectory("a", 1.0, tokens=2),
        trajectory("b", 0.0, tokens=8),
        trajectory("c", 0.0, tokens=3, segments=2),
    ]
    found = chosen(group)
    total = {}
    for sample in found.samples:
        total[sample.name] = total.get(sample.name, 0) + sample.weight * sum(sample.segment.sampled)
    assert total == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert {s.name: s.advantage for s in found.samples} == pytest.approx(
        {"a": 2 / 3, "b": -1 / 3, "c": -1 / 3}
    )
    assert found.counts == {"kept": 3, "groups_kept": 1}


def test_a_failed_environment_is_padded_from_the_others():
    found = chosen([trajectory("a", 1.0), trajectory("b", None), trajectory("c", 0.0)], advantages=normalised)
    assert [s.name for s in found.samples] == ["a", "c", "a"]
    assert found.counts == {"kept": 2, "failed": 1, "groups_kept": 1}


def test_half_a_group_is_dropped():
    found = chosen([trajectory("a", 1.0), trajectory("b", None)], [trajectory("c", None)] * 3, [])
    assert not found.samples and found.counts == {"kept": 1, "failed": 4, "groups_dropped": 3}


def test_equal_rewards_teach_nothing():
    found = chosen([trajectory("a", 1.0), trajectory("b", 1.0)], [trajectory("c", 1.0), trajectory("d", 0.0)])
    assert {s.name for s in found.samples} == {"c", "d"}
    assert [s.weight * 4 for s in found.samples] == pytest.approx([0.5, 0.5])
    assert found.counts["groups_dead"] == 1


def test_old_and_overlong_and_empty_trajectories_are_left_out():
    group = [
        trajectory("fresh", 1.0), trajectory("also", 0.0), trajectory("aged", 0.5, version=3),
        trajectory("old", 1.0, version=2), trajectory("long", 1.0, context=200),
        trajectory("empty", 0.0, segments=0),
    ]  # fmt: skip
    found = chosen([*group, trajectory("more", 0.0), trajectory("yet", 0.0)])
    assert {s.name for s in found.samples} == {"fresh", "also", "aged", "more", "yet"}
    assert found.counts == {"kept": 5, "stale": 1, "too_long": 1, "empty": 1, "groups_kept": 1}
