"""The payload of a stage of reinforcement learning, as its trainer would leave it."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from model.chat.tokenizer import Tokenizer
from tasks.rl.batches import Sample
from tasks.rl.difficulty import curriculum
from tasks.rl.group import Group
from tasks.rl.record import TrajectoryLog
from tasks.rl.selection import Selection
from tasks.rl.trajectory import Segment, Trajectory, Turn
from tests.tasks.conftest import write_tokenizer

# As stage reasoning_rl writes them: 22 tasks, of which 2 could not be judged.
RATES = [0.0] * 9 + [0.5] * 7 + [1.0] * 4 + [None] * 2
_, COUNTS = curriculum([("task", "off")] * len(RATES), RATES)
FACTS = {f"difficulty/tools/calc/{name}": value for name, value in COUNTS.items()} | {
    "reward_model/accuracy": 0.9375
}
CALL = {"type": "function", "function": {"name": "calc", "arguments": {"e": "1+2"}}}
MESSAGES = [
    {"role": "user", "content": "what is 1+2"},
    {"role": "assistant", "content": "", "reasoning_content": "add them", "tool_calls": [CALL]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "three"},
]


def segment(ids: list[int], sampled: int, version: int = 0, kind: str = "start") -> Segment:
    """Context, and at its end ``sampled`` tokens."""
    made = Segment()
    made.read(ids[: len(ids) - sampled])
    made.turns.append(Turn(kind, 0, len(made), 1000.0, 1000.5))
    made.sample(ids[len(ids) - sampled :], [-0.25] * sampled, [version] * sampled)
    return made


def trajectory(segments: list[Segment], **changes: Any) -> Trajectory:
    values = {
        "id": "group-0/0", "group": "group-0", "task": "tools/calc/7", "environment": "tools",
        "family": "calc", "mode": "interleaved", "segments": segments, "reward": 1.0, "reason": "right",
        "messages": MESSAGES, "seconds": 2.5,
    }  # fmt: skip
    return Trajectory(**{**values, **changes})


def keep(folder: Path, step: int, *kept: Trajectory, advantage: float | list[float] = 0.5) -> None:
    """Append to the folder's file as training would: each trajectory with a group of its own."""
    samples = [Sample(part, advantage, 1.0, one.id) for one in kept for part in one.segments]
    groups = [Group(number, [one]) for number, one in enumerate(kept)]
    TrajectoryLog(folder / "trajectories.jsonl", 99).keep(step, step, groups, Selection(samples))


@cache
def tokenizer_file() -> str:
    """A small tokenizer.json, trained once."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), ["one and one"] * 50)
        return (Path(folder) / "tokenizer.json").read_text(encoding="utf-8")


def fill(folder: Path) -> dict[str, float]:
    """Curves of four steps, a tokenizer, and a trajectory of each step; returns the metrics."""
    (folder / "tokenizer.json").write_text(tokenizer_file(), encoding="utf-8")
    names = "step,reward/mean,reward/tools/calc,mismatch_kl,off_policy/masked,part/rules"
    lines = [f"{names},perf/rollout_s,perf/update_s"]
    lines += [f"{step},{0.2 * step},{0.1 * step},{step}e-10,0.0,0.5,3.0,1.0" for step in range(1, 5)]
    (folder / "curves.csv").write_text("\n".join(lines) + "\n")
    encode = Tokenizer.load(folder).encode
    for step in range(4):
        keep(folder, step, trajectory([segment(encode("what is 1+2 three"), 3, step)]))
    return {"reward/mean": 0.8, "train/tokens": 1234.0}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
