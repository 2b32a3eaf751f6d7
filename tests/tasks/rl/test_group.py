"""Groups on disk: every value comes back, and nothing half written is ever seen."""

import random

import numpy as np

from tasks.rl.group import Group, Spool, pack, unpack
from tasks.rl.trajectory import Segment, Trajectory, Turn


def group(index: int) -> Group:
    rng = random.Random(index)

    def segment(experts: bool) -> Segment:
        made = Segment()
        made.read([rng.randrange(2**20) for _ in range(rng.randrange(1, 9))])
        made.turns = [Turn("append", 1, len(made), 1e9, 1e9 + number) for number in range(rng.randrange(3))]
        count = rng.randrange(5)
        made.sample([rng.randrange(99) for _ in range(count)], [-0.5] * count, [rng.randrange(9)] * count)
        if experts:
            made.experts = np.arange(len(made) * 6, dtype=np.int16).reshape(-1, 3, 2)
        return made

    def trajectory(number: int) -> Trajectory:
        segments = [segment(bool(rng.randrange(2))) for _ in range(rng.randrange(3))]
        return Trajectory(
            f"r{number}", f"g{index}", "task", "tools", "calc", "off", segments, rng.choice([None, 0.0, 0.5]),
            "größe", [{"role": "user", "content": "hé\n"}], 1.5, {"parts/format": 1.0},
        )  # fmt: skip

    return Group(index, [trajectory(number) for number in range(rng.randrange(5))])


def same(one: Group, other: Group) -> bool:
    for mine, theirs in zip(one.trajectories, other.trajectories, strict=True):
        for left, right in zip(mine.segments, theirs.segments, strict=True):
            assert (left.experts is None) == (right.experts is None)
            assert left.experts is None or (left.experts == right.experts).all()
            assert (left.ids, left.sampled, left.logprobs, left.versions, left.turns) == (
                right.ids, right.sampled, right.logprobs, right.versions, right.turns
            )  # fmt: skip
        rest = {key: value for key, value in mine.__dict__.items() if key != "segments"}
        assert rest == {key: value for key, value in theirs.__dict__.items() if key != "segments"}
    return one.index == other.index


def test_everything_comes_back():
    for index in range(30):
        assert same(unpack(pack(group(index))), group(index))


def test_a_spool_is_a_folder_of_whole_groups(tmp_path):
    spool = Spool(tmp_path / "spool")
    for index in (12, 3, 700):
        spool.put(group(index))
    (spool.folder / ".00000004").write_bytes(b"half")
    again = Spool(tmp_path / "spool")
    assert again.indices() == [3, 12, 700]
    again.sweep()
    assert again.indices() == [3, 12, 700] and not list(again.folder.glob(".*"))
    assert same(again.get(12), group(12))
    again.drop(12)
    again.drop(12)
    assert again.indices() == [3, 700]
    assert sorted(path.name for path in spool.folder.iterdir()) == ["00000003.npz", "00000700.npz"]


def test_a_damaged_group_is_known(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.put(group(3))
    path = spool.folder / "00000003.npz"
    whole = path.read_bytes()
    assert spool.get_whole(3) is not None and spool.get_whole(4) is None
    (spool.folder / "00000004.npz").write_bytes(whole)
    (spool.folder / "copy of 3.npz").write_bytes(whole)
    assert spool.indices() == [3, 4] and spool.get_whole(4) is None  # it is another's
    middle = len(whole) // 2
    for damaged in (
        b"",
        b"PK",
        whole[:-30],
        whole[:middle],
        whole[:middle] + b"?" * 40 + whole[middle + 40 :],
    ):
        path.write_bytes(damaged)
        assert spool.get_whole(3) is None
