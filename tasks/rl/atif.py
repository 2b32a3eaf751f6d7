"""The rollouts that a stage of reinforcement learning kept as ATIF 1.8 trajectories, a file each.

    python -m tasks.rl.atif artifacts/tiny/agentic_rl FOLDER

Each answer has the tokens that it was sampled after, its own, and their log-probabilities. Where answers and
sampled turns are not as many, as when an agent asked again, the text stands there alone. What tools there
were is not among the records.
"""

import argparse
import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

from environments.interface import Task, Verdict
from environments.trajectory import Metrics, Trajectory
from pipeline.errors import UserError, run_command
from pipeline.tracking import TRAJECTORIES

DAMAGE = (AttributeError, IndexError, KeyError, TypeError, ValueError)  # a line that is not as it should be
KEPT = ("step", "version", "mode", "group", "group_rewards", "seconds")  # of a record, under ``extra``


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.rl.atif", description=__doc__.split("\n")[0])
    parser.add_argument("stage", type=Path, help="the artifact of a stage")
    parser.add_argument("folder", type=Path, help="new; a file a rollout is written there")
    options = parser.parse_args(arguments)
    source = options.stage / TRAJECTORIES
    if not source.is_file():
        raise UserError(f"there is no {source}: name an artifact of a stage of reinforcement learning")
    try:
        options.folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{options.folder} cannot be made ({error.strerror}): name a new folder") from None
    written, broken = _write_all(source, options.folder)
    print(f"{written} trajectories are in {options.folder}")
    if broken:
        print(f"{broken} lines of {source} cannot be read and are left out", file=sys.stderr)
    return int(broken > 0)


def _write_all(source: Path, folder: Path) -> tuple[int, int]:
    """How many lines became a file, and how many could not."""
    stage, written, broken = source.parent.resolve(), 0, 0
    with open(source, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file):
            try:
                trajectory = to_atif(json.loads(line), f"{stage.parent.name}/{stage.name}")
            except DAMAGE:
                broken += 1
                continue
            (folder / f"{number:05d}.json").write_text(trajectory.to_json() + "\n", encoding="utf-8")
            written += 1
    return written, broken


def to_atif(record: dict[str, Any], model: str) -> Trajectory:
    """Of a line of ``TrajectoryLog``. Raises one of ``DAMAGE`` where it is none."""
    names = record["task"], record["environment"], record["family"]
    task = Task(*names, (), (), {}, 0, 0, heldout=False)  # held-out ones are never trained on
    messages, verdict = record["messages"], Verdict(record["reward"], record["reason"])
    answers = sum(message["role"] == "assistant" for message in messages)
    metrics = _metrics(record["segments"])
    counted = metrics if len(metrics) == answers else None
    made = Trajectory.of_dialogue(task, messages, verdict, "policy", model, record["id"], counted)
    more = {name: record[name] for name in KEPT if name in record} | record.get("extra", {})
    return made.model_copy(update={"extra": {**made.extra, **more}})


def _metrics(segments: list[dict[str, Any]]) -> list[Metrics]:
    """Of each sampled turn, in the order in which they were asked for."""
    turns = [(turn, segment) for segment in segments for turn in segment.get("turns", [])]
    turns.sort(key=lambda pair: pair[0]["began"])
    return [_metrics_of(turn["answer"], segment) for turn, segment in turns]


def _metrics_of(answer: int, segment: dict[str, Any]) -> Metrics:
    """``answer``: the place of its first token."""
    sampled = len(list(takewhile(bool, segment["sampled"][answer:])))
    end = answer + sampled
    return Metrics(
        prompt_tokens=answer, completion_tokens=sampled, prompt_token_ids=segment["ids"][:answer],
        completion_token_ids=segment["ids"][answer:end], logprobs=segment["logprobs"][answer:end],
    )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
