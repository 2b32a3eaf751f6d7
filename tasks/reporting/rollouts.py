"""When rollouts, updates and pushes of weights happened, as a picture of a stage's last steps.

Above, every rollout is a bar from its first request to its last answer, in the first lane that is free; two
shades tell weight versions apart. Below stands what the trainer did meanwhile.
"""

import heapq
import json
from dataclasses import dataclass
from typing import Any

from pipeline.tracking import STEP_TIMES
from tasks.reporting.charts import short, ticks
from tasks.reporting.facts import Facts

MOST = 480  # rollouts that are drawn: whole steps, from the last one back
WIDTH, LEFT, RIGHT, TOP = 960, 66, 8, 6
ROLLOUTS, TRAINER, GAP, AXIS = 150, 16, 10, 22  # heights
PARTS = ("perf/rollout_s", "perf/select_s", "perf/update_s", "perf/push_s")  # in the order of a step
DAMAGE = (KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class Span:
    """Seconds from the beginning of the picture."""

    began: float
    ended: float
    shade: int


def rollouts(facts: Facts, name: str) -> dict[str, Any]:
    """The picture of a stage with its first and last step; empty where the artifact has no times."""
    path = facts.folders[name] / STEP_TIMES
    if not path.is_file():
        return {}  # made before times were kept
    try:
        steps = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        drawn = last_steps(steps, MOST)
        if not drawn or not any(step["rollouts"] for step in drawn):
            return {}
        return {
            "svg": _draw(drawn), "first": drawn[0]["step"] + 1, "last": drawn[-1]["step"] + 1,
            "steps": len(steps), "rollouts": sum(len(step["rollouts"]) for step in drawn),
            "during": overlap(steps),
        }  # fmt: skip
    except DAMAGE:
        facts.missing.append(f"{name}/{STEP_TIMES} cannot be read: its timeline is left out")
        return {}


def last_steps(steps: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """As many whole steps from the end as have no more than ``most`` rollouts, and one at least."""
    chosen: list[dict[str, Any]] = []
    count = 0
    for step in reversed(steps):
        count += len(step["rollouts"])
        if chosen and count > most:
            break
        chosen.insert(0, step)
    return chosen


def overlap(steps: list[dict[str, Any]]) -> float | None:
    """Share of the time of updates and pushes in which a rollout was under way: 0 where they take turns."""
    busy = _union([(began, ended) for step in steps for began, ended, *_ in step["rollouts"]])
    whole = shared = 0.0
    for step in steps:
        start = step["ended"] - sum(step["seconds"][part] for part in PARTS[1:])
        whole += step["ended"] - start
        shared += sum(max(0.0, min(end, step["ended"]) - max(begin, start)) for begin, end in busy)
    return shared / whole if whole else None


def lanes(spans: list[Span]) -> list[int]:
    """For each span, in the order of their beginnings, the lowest lane that is free."""
    free: list[int] = []
    running: list[tuple[float, int]] = []
    places, count = [], 0
    for span in spans:
        while running and running[0][0] <= span.began:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        heapq.heappush(running, (span.ended, lane))
        places.append(lane)
    return places


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for began, ended in sorted(spans):
        if joined and began <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], ended))
        else:
            joined.append((began, ended))
    return joined


def _draw(steps: list[dict[str, Any]]) -> str:
    began = [step["ended"] - sum(step["seconds"][part] for part in PARTS) for step in steps]
    start = min(began[0], *(rollout[0] for step in steps for rollout in step["rollouts"]))
    scale = (WIDTH - LEFT - RIGHT) / max(steps[-1]["ended"] - start, 1e-3)

    def place(moment: float) -> float:
        return LEFT + scale * (moment - start)

    spans = sorted(
        (Span(b, e, version % 2) for step in steps for b, e, version, _ in step["rollouts"]),
        key=lambda span: (span.began, span.ended),
    )
    places = lanes(spans)
    height = min(9.0, ROLLOUTS / (max(places) + 1))
    bottom = TOP + height * (max(places) + 1)
    parts = [_label("rollouts", (TOP + bottom) / 2), _label("trainer", bottom + GAP + TRAINER / 2)]
    parts += _axis(steps[-1]["ended"] - start, bottom + GAP + TRAINER, place(start), scale)
    for span, lane in zip(spans, places, strict=True):
        x, width = place(span.began), max(scale * (span.ended - span.began), 0.6)
        y, h = TOP + height * lane, max(height - min(1.0, 0.2 * height), 0.4)
        parts.append(_rect(f'class="v{span.shade}"', x, y, width, h))
    for step, moment in zip(steps, began, strict=True):
        parts += _trainer(step, place(moment), bottom + GAP, scale)
    frame = f'viewBox="0 0 {WIDTH} {bottom + GAP + TRAINER + AXIS:.0f}" role="img"'
    said = "rollouts, updates and pushes of weights over time"
    return f'<svg class="chart rollouts" {frame} aria-label="{said}">{"".join(parts)}</svg>'


def _trainer(step: dict[str, Any], x: float, y: float, scale: float) -> list[str]:
    boxes = []
    for colour, part in enumerate(PARTS, 1):
        width = scale * step["seconds"][part]
        if part != "perf/rollout_s" and width > 0.05:  # waiting is left blank
            boxes.append(_rect(f'style="fill:var(--c{colour})"', x, y, max(width, 0.8), TRAINER))
        x += width
    return boxes


def _rect(style: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect {style} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _label(text: str, y: float) -> str:
    return f'<text x="{LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>'


def _axis(seconds: float, y: float, x: float, scale: float) -> list[str]:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    marks = ticks(0, seconds, 8)
    return [line] + [
        f'<text x="{x + scale * mark:.1f}" y="{y + 15:.1f}" text-anchor="middle">{short(mark)} s</text>'
        for mark in marks
    ]
