"""Rewards: one finite number in [0, 1] counts, everything else has a name and no reward."""

import asyncio

import pytest

from environments.harbor import rewards
from environments.harbor.rewards import RewardFault, parse_json, parse_text, read_rewards


class Left:
    """What a sandbox would give: the files that the tests left."""

    def __init__(self, **files: bytes) -> None:
        self.files = {f"/logs/verifier/reward.{name}": content for name, content in files.items()}

    async def read(self, path: str, limit: int) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][:limit]


def found(**files: bytes) -> dict[str, float]:
    return asyncio.run(read_rewards(Left(**files)))


def test_json_wins_over_text():
    assert found(txt=b"0.25\n") == {"reward": 0.25}
    assert found(txt=b"0", json=b'{"reward": 1, "speed": 7.5}') == {"reward": 1.0, "speed": 7.5}
    assert found(json=b'{"score": 0.5}') == {"score": 0.5, "reward": 0.5}


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (b"", rewards.EMPTY),
        (b" \n", rewards.EMPTY),
        (b"nan", rewards.NOT_FINITE),
        (b"-inf", rewards.NOT_FINITE),
        (b"1e999", rewards.NOT_FINITE),
        (b"1.01", rewards.OUT_OF_RANGE),
        (b"-0.1", rewards.OUT_OF_RANGE),
        (b"one", rewards.NOT_NUMERIC),
        (b"1 1", rewards.NOT_NUMERIC),
        (b"\xff\xfe", rewards.NOT_NUMERIC),
        (b"1" * 70_000, rewards.TOO_LONG),
    ],
)
def test_what_is_no_reward_in_text(content, outcome):
    with pytest.raises(RewardFault) as fault:
        found(txt=content)
    assert fault.value.outcome == outcome and len(str(fault.value)) < 200


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (b"", rewards.EMPTY),
        (b"{}", rewards.NOT_NUMERIC),
        (b"1", rewards.NOT_NUMERIC),
        (b"[1]", rewards.NOT_NUMERIC),
        (b"{", rewards.NOT_NUMERIC),
        (b"[" * 60_000, rewards.NOT_NUMERIC),
        (b'{"reward": true}', rewards.NOT_NUMERIC),
        (b'{"reward": "1"}', rewards.NOT_NUMERIC),
        (b'{"reward": null}', rewards.NOT_NUMERIC),
        (b'{"reward": {"a": 1}}', rewards.NOT_NUMERIC),
        (b'{"a": 1, "b": 1}', rewards.NOT_NUMERIC),
        (b'{"reward": NaN}', rewards.NOT_FINITE),
        (b'{"reward": 1, "other": Infinity}', rewards.NOT_FINITE),
        (b'{"reward": 1e999}', rewards.NOT_FINITE),
        (b'{"reward": 1' + b"0" * 400 + b"}", rewards.NOT_FINITE),
        (b'{"reward": 2}', rewards.OUT_OF_RANGE),
    ],
)
def test_what_is_no_reward_in_json_is_not_made_up_for_by_text(content, outcome):
    with pytest.raises(RewardFault) as fault:
        found(json=content, txt=b"1")
    assert fault.value.outcome == outcome and len(str(fault.value)) < 200


def test_nothing_left():
    with pytest.raises(RewardFault) as fault:
        found()
    assert fault.value.outcome == rewards.MISSING
    assert parse_text(b"1\n") == parse_json(b'{"reward": 1}') == {"reward": 1.0}
