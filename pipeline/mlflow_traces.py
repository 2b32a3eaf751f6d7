"""Rollouts that a stage of reinforcement learning kept, as traces of its MLflow run.

A trace is a trajectory: a span a turn with its tokens, a span a tool call, and the verdict, at the times at
which they happened. Lines are those of ``trajectories.jsonl`` (``tasks.rl.record``).
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import SpanType

MOST_TRACES = 50  # each takes a tenth of a second; the file and the report's viewer have more
MOST_CHARACTERS = 10_000  # of a text
MOST_TOKENS = 1_000  # of an answer, whose ids and log-probs are listed
JUDGED = ("advantage", "teacher_logprobs")  # the one or the other
USAGE = "mlflow.chat.tokenUsage"  # what MLflow counts tokens by


def log_traces(client: MlflowClient, experiment: str, run: str, file: Path) -> None:
    """Some trajectories of ``file``, evenly spread, as traces of the run; a tag of it says how many."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if not lines:
        return
    count = min(len(lines), MOST_TRACES)
    places = {round(n * (len(lines) - 1) / max(count - 1, 1)) for n in range(count)}
    for place in sorted(places):
        _log(client, experiment, run, json.loads(lines[place]))
    client.set_tag(run, "traces", f"{len(places)} of {len(lines)} kept trajectories")


def _log(client: MlflowClient, experiment: str, run: str, record: dict[str, Any]) -> None:
    turns = sorted(_turns(record), key=lambda turn: turn["began"])
    begun = turns[0]["began"] if turns else time.time()
    ended = turns[-1]["ended"] if turns else begun
    rounds = _rounds(record["messages"])
    root = client.start_trace(
        f"{record['environment']}/{record['family']}", SpanType.AGENT, {"messages": _short(rounds[0].asked)},
        _short(_facts(record)), _tags(record), experiment, _nanoseconds(begun), run,
    )  # fmt: skip

    def span(name: str, kind: str, start: float, end: float, inputs: Any, outputs: Any, about: dict) -> None:
        made = client.start_span(
            name, root.trace_id, root.span_id, kind, _short(inputs), _short(about), _nanoseconds(start)
        )
        client.end_span(root.trace_id, made.span_id, _short(outputs), end_time_ns=_nanoseconds(end))

    for number, turn in enumerate(turns):
        told = rounds[number] if number < len(rounds) else _Round([])
        name, inputs = f"turn {number + 1}", {"messages": told.asked}
        span(name, SpanType.CHAT_MODEL, turn["began"], turn["ended"], inputs, told.answer, turn["about"])
        until = turns[number + 1]["began"] if number + 1 < len(turns) else turn["ended"]
        replies = [m["content"] for m in _after(rounds, number) if m["role"] == "tool"]
        for call, reply in zip_longest(told.calls, replies[: len(told.calls)]):
            span(str(call["name"]), SpanType.TOOL, turn["ended"], until, call.get("arguments"), reply, {})
    verdict = {"reward": record["reward"], "reason": record["reason"], **record.get("extra", {})}
    span("verdict", SpanType.EVALUATOR, ended, ended, None, verdict, {})
    status = "ERROR" if record["reward"] is None else "OK"  # the environment failed, not the policy
    client.end_trace(root.trace_id, _short(verdict), status=status, end_time_ns=_nanoseconds(ended))


@dataclass
class _Round:
    """What was new to the policy, and its answer."""

    asked: list[dict[str, Any]]
    answer: dict[str, Any] | None = None  # none came

    @property
    def calls(self) -> list[dict[str, Any]]:
        calls = (self.answer or {}).get("tool_calls") or []
        return [call.get("function") or call for call in calls]


def _rounds(messages: list[dict[str, Any]]) -> list[_Round]:
    rounds = [_Round([])]
    for message in messages:
        if message["role"] == "assistant":
            rounds[-1].answer = message
            rounds.append(_Round([]))
        else:
            rounds[-1].asked.append(message)
    return rounds


def _after(rounds: list[_Round], number: int) -> list[dict[str, Any]]:
    """The messages that followed an answer."""
    return rounds[number + 1].asked if number + 1 < len(rounds) else []


def _turns(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Answers of all segments: when they were asked and given, and what is told about their tokens."""
    for number, segment in enumerate(record["segments"]):
        turns = segment.get("turns", [])
        ends = [turn["place"] for turn in turns[1:]] + [len(segment["ids"])]
        for turn, end in zip(turns, ends, strict=True):
            answer = slice(turn["answer"], end)
            read, sampled = turn["answer"], end - turn["answer"]
            logprobs = segment["logprobs"][answer]
            about = {
                "segment": number, "join": turn["kind"], "versions": sorted(set(segment["versions"][answer])),
                USAGE: {"input_tokens": read, "output_tokens": sampled, "total_tokens": read + sampled},
                "logprob_mean": sum(logprobs) / max(sampled, 1),
                "token_ids": segment["ids"][answer][:MOST_TOKENS],
                "logprobs": [round(value, 4) for value in logprobs[:MOST_TOKENS]],
                **{name: _of_answer(segment[name], answer) for name in JUDGED if name in segment},
            }  # fmt: skip
            yield {"began": turn["began"], "ended": turn["ended"], "about": about}


def _of_answer(advantage: Any, answer: slice) -> Any:
    return advantage[answer][:MOST_TOKENS] if isinstance(advantage, list) else advantage


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    """Attributes of the whole trajectory."""
    segments = record["segments"]
    return {
        **{name: record.get(name) for name in ("id", "group", "task", "mode", "step", "version", "reward")},
        "reason": record["reason"], "seconds": record["seconds"],
        "group_rewards": record.get("group_rewards"), "segments": len(segments),
        "tokens": sum(len(segment["ids"]) for segment in segments),
        "sampled_tokens": sum(sum(segment["sampled"]) for segment in segments),
        "sampled_by_versions": sorted({v for segment in segments for v in segment["versions"] if v >= 0}),
    }  # fmt: skip


def _tags(record: dict[str, Any]) -> dict[str, str]:
    names = ("step", "mode", "reward")
    family = f"{record['environment']}/{record['family']}"
    return {"family": family, **{name: str(record[name]) for name in names}}


def _short(value: Any) -> Any:
    """The value with its long texts cut, and without what is no valid Unicode: a database takes neither."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… ({len(text)} characters)"
    if isinstance(value, dict):
        return {_short(key): _short(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_short(inner) for inner in value]
    return value


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
