"""What a verifier left in /logs/verifier, read as a reward or as the reason why there is none.

``reward.json`` (a flat object of finite numbers; ``reward`` is the one that counts, or the only one) wins
over ``reward.txt`` (one number), as in Harbor. Whatever is no reward in [0, 1] is a fault of the task, not of
the agent: its reward is None, so the attempt is dropped and counted, and never scored.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from environments.interface import Verdict
from environments.sandbox.interface import Sandbox

FOLDER = "/logs/verifier"
MAX_BYTES = 65_536

GRADED = "graded"  # the tests left a reward
LOST_WORK = "work lost"  # the agent left its sandbox in a state from which nothing could be taken: reward 0
TIMEOUT = "verifier timeout"
KILLED = "verifier killed"  # by a signal: whoever sent it may have left the reward
MISSING = "reward missing"
EMPTY = "reward empty"
NOT_FINITE = "reward not finite"
NOT_NUMERIC = "reward not numeric"
OUT_OF_RANGE = "reward out of range"
TOO_LONG = "reward too long"
BROKEN = "sandbox broken"


@dataclass(frozen=True)
class Grading:
    """The end of a verification: ``outcome`` is one of the words above, ``output`` what the tests printed."""

    outcome: str
    reward: float | None
    reason: str
    rewards: dict[str, float] = field(default_factory=dict)
    output: str = ""

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.reward, self.reason)


class RewardFault(Exception):
    """No reward: ``outcome`` is the word, the text the sentence."""

    def __init__(self, outcome: str, sentence: str) -> None:
        super().__init__(sentence)
        self.outcome = outcome


async def read_rewards(sandbox: Sandbox) -> dict[str, float]:
    """All rewards, the one that counts under ``reward``. Raises ``RewardFault``."""
    for name, parse in (("reward.json", parse_json), ("reward.txt", parse_text)):
        try:
            content = await sandbox.read(f"{FOLDER}/{name}", MAX_BYTES + 1)
        except FileNotFoundError:
            continue
        if len(content) > MAX_BYTES:
            raise RewardFault(TOO_LONG, f"{name} is longer than {MAX_BYTES} bytes")
        if not content.strip():
            raise RewardFault(EMPTY, f"{name} is empty")
        return parse(content)
    raise RewardFault(MISSING, "the tests left no reward")


def parse_text(content: bytes) -> dict[str, float]:
    text = content.decode("ascii", errors="replace").strip()
    try:
        value = float(text)
    except ValueError:
        raise RewardFault(NOT_NUMERIC, f"reward.txt holds {text[:80]!r} and no number") from None
    return {"reward": _checked("reward.txt", value)}


def parse_json(content: bytes) -> dict[str, float]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise RewardFault(NOT_NUMERIC, "reward.json is no JSON") from None
    if not isinstance(values, dict) or not values:
        raise RewardFault(NOT_NUMERIC, "reward.json holds no object of numbers")
    counts = "reward" if "reward" in values else next(iter(values)) if len(values) == 1 else None
    if counts is None:
        raise RewardFault(NOT_NUMERIC, "reward.json holds several numbers and none is called reward")
    rewards = {name: _number(name, value) for name, value in values.items()}
    return {**rewards, "reward": _checked("reward.json", rewards[counts])}


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RewardFault(
            NOT_NUMERIC, f"reward.json holds {str(value)[:80]!r} under {name[:80]!r}, no number"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RewardFault(NOT_FINITE, f"reward.json holds {number} under {name[:80]!r}")
    return number


def _checked(file: str, value: float) -> float:
    if not math.isfinite(value):
        raise RewardFault(NOT_FINITE, f"{file} holds {value}")
    if not 0 <= value <= 1:
        raise RewardFault(OUT_OF_RANGE, f"{file} holds {value}, which is not between 0 and 1")
    return value
