"""The control whose rewards say nothing: they are the batch's own, at other rollouts."""

from benchmarks.rl_controls import _change, shuffled
from tasks.rl.group import Group
from tasks.rl.selection import Selection
from tasks.rl.trajectory import Trajectory


def batch(first):
    def trajectory(group, number):
        reward = None if number == 2 else float((group + number) % 3)
        return Trajectory(f"g{group}/{number}", f"g{group}", "t", "tools", "calc", "off", [], reward, "")

    return [Group(first + g, [trajectory(g, n) for n in range(6)]) for g in range(8)]


def test_rewards_are_dealt_anew():
    seen = []

    def select(groups, version):
        seen.append((groups, version))
        return Selection()

    for first in (0, 0, 8):
        shuffled(select, seed=1)(batch(first), 3)
    rewards = [[t.reward for group in groups for t in group.trajectories] for groups, _ in seen]
    before = [t.reward for group in batch(0) for t in group.trajectories]
    for found in rewards:
        assert sorted(r for r in found if r is not None) == sorted(r for r in before if r is not None)
        assert [r is None for r in found] == [r is None for r in before] and found != before
    assert rewards[0] == rewards[1] != rewards[2] and all(version == 3 for _, version in seen)
    assert [[t.id for t in group.trajectories] for group in seen[0][0]] == [
        [t.id for t in group.trajectories] for group in batch(0)
    ]


def test_a_change_of_rewards_is_told_from_chance():
    assert _change([0.1] * 12 + [0.5] * 12, 0)["p"] < 0.001
    alternating = _change([0.1, 0.5] * 12, 0)
    assert alternating == {"value": 0.0, "p": 1.0}
