"""Reinforcement learning on the page: rewards by family, how far engine and trainer part, where time goes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tasks.reporting.charts import Series, line_chart, smooth, sparkline
from tasks.reporting.facts import Curve, Facts, StageFacts
from tasks.reporting.rollouts import rollouts

MEAN = "reward/mean"
ENDS = 0.2  # of a family's steps: what "first" and "last" are means of
COLOURS = 6  # that curves of a chart have
MOST_FACTS = 60
DIFFICULTY = {"mean_rate", "never", "sometimes", "always", "unjudged"}  # counts of tasks before training
OWN = (
    ("part/", "Parts of the reward", "mean of a step"),
    ("failed/", "Parts that could not be judged", "share"),
    ("distill/kl/", "KL to the teacher", "nats a token"),
)
LEFT_OUT = {
    "stale": "too old", "failed": "failed environments", "too_long": "too long for a row",
    "empty": "without a token",
}  # fmt: skip
TIMES = {
    "perf/rollout_s": "rollouts", "perf/select_s": "rewards and selection", "perf/update_s": "update",
    "perf/push_s": "push of weights",
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """A chart of several curves, by the metric's name; what is 0 in every step is named instead of drawn."""

    label: str
    curves: dict[str, str]  # metric -> what the legend calls it
    unit: str = ""
    log: bool = False
    steady: bool = True  # needs no smoothing


PLOTS = (
    Plot("Reward", {MEAN: "mean of a step"}, steady=False),
    Plot("Groups that teach", {"rollouts/groups_kept": "rewards differ", "rollouts/groups_dead": "all equal",
                               "rollouts/groups_dropped": "too few judged"}, "of a step"),
    Plot("Mismatch of engine and trainer", {"mismatch_kl": "KL"}, "nats, log scale", log=True),
    Plot("Tokens without weight", {"off_policy/masked": "masked", "off_policy/clipped": "clipped"}, "share"),
    Plot("Length of a rollout", {"rollout/len_mean": "mean", "rollout/len_max": "longest"}, "sampled tokens"),
    Plot("Staleness", {"off_policy/age_mean": "mean", "off_policy/age_max": "oldest"}, "versions"),
    Plot("Time of a step", TIMES, "seconds"),
    Plot("Segments of a rollout", {"rollout/segments_mean": "mean"}),
    Plot("Gradient norm", {"optim/grad_norm": "each step"}, steady=False),
)  # fmt: skip


def learning(facts: Facts, name: str) -> dict[str, Any]:
    """What the page shows of one stage: charts, a row a family, the whole time by part, counts."""
    stage = facts.stages[name]
    plots = [*PLOTS[:1], *_own_plots(stage.curves), *PLOTS[1:]]
    drawn = [_draw(plot, stage.curves) for plot in plots]
    return {
        "name": name, "description": stage.description, "record": stage.record,
        "steps": len(stage.curves.get(MEAN, [])), "tokens": stage.metrics.get("train/tokens"),
        "charts": [chart for chart in drawn if chart["svg"]],
        "zero": [label for plot in plots for label in _zero(plot, stage.curves)],
        "ends": ends(stage.curves.get(MEAN, [])), "families": _families(stage),
        "times": times(stage.curves), "counts": _counts(stage.curves), "facts": _other_facts(stage),
        "rollouts": rollouts(facts, name),
    }  # fmt: skip


def _own_plots(curves: dict[str, Curve]) -> list[Plot]:
    """Charts of what only some stages log: parts of the reward, distance to teachers."""
    plots = []
    for prefix, label, unit in OWN:
        names = sorted(name for name in curves if name.startswith(prefix))
        if names:
            plots.append(Plot(label, {name: name.removeprefix(prefix) for name in names[:COLOURS]}, unit))
    return plots


def _other_facts(stage: StageFacts) -> list[tuple[str, float]]:
    """Numbers of the record that stand nowhere else on the page."""
    facts = (stage.record or {}).get("facts", {})
    known = [(key, value) for key, value in facts.items() if isinstance(value, (int, float))]
    return [(key, value) for key, value in known if not key.startswith("difficulty/")][:MOST_FACTS]


def ends(curve: Curve) -> tuple[float, float] | None:
    """The mean over the first and over the last part of a curve; None without a point."""
    if not curve:
        return None
    size = max(1, round(ENDS * len(curve)))
    return _mean(curve[:size]), _mean(curve[-size:])


def times(curves: dict[str, Curve]) -> list[dict[str, Any]]:
    """Seconds of all steps by part, with the share and the colour that the chart gives it."""
    parts = [
        {"label": label, "seconds": sum(value for _, value in curves[name]), "colour": number}
        for number, (name, label) in enumerate(TIMES.items(), 1)
        if name in curves
    ]
    whole = sum(part["seconds"] for part in parts)
    return [{**part, "share": part["seconds"] / whole} for part in parts if part["seconds"]]


def _families(stage: StageFacts) -> list[dict[str, Any]]:
    curves = {
        name.removeprefix("reward/"): curve
        for name, curve in stage.curves.items()
        if name.startswith("reward/") and name != MEAN
    }
    difficulty = _difficulty((stage.record or {}).get("facts", {}))
    values = [value for curve in curves.values() for _, value in curve]
    return [
        {
            "family": name, "ends": ends(curves.get(name, [])), "difficulty": difficulty.get(name),
            "line": sparkline(smooth(curves.get(name, []), 0.2), min(values), max(values)) if values else "",
        }
        for name in sorted(curves.keys() | difficulty.keys())
    ]  # fmt: skip


def _difficulty(facts: dict[str, Any]) -> dict[str, dict[str, float]]:
    """``difficulty/<environment>/<family>/<count>`` of a record, by family; families with all counts."""
    found: dict[str, dict[str, float]] = {}
    for key, value in facts.items():
        if key.startswith("difficulty/"):
            family, _, count = key.removeprefix("difficulty/").rpartition("/")
            found.setdefault(family, {})[count] = value
    return {family: counts for family, counts in found.items() if counts.keys() >= DIFFICULTY}


def _counts(curves: dict[str, Curve]) -> dict[str, Any]:
    def whole(name: str) -> int:
        return round(sum(value for _, value in curves.get(f"rollouts/{name}", [])))

    left = {text: whole(name) for name, text in LEFT_OUT.items()}
    return {"kept": whole("kept"), "left_out": [(text, count) for text, count in left.items() if count]}


def _draw(plot: Plot, known: dict[str, Curve]) -> dict[str, Any]:
    series, legend = [], []
    for colour, (name, label) in enumerate(plot.curves.items(), 1):
        curve = _curve(name, known)
        if not _moves(curve):
            continue
        series.append(Series(label, curve, colour, faint=not plot.steady))
        if not plot.steady:
            series.append(Series("running mean", smooth(curve), colour))
        legend.append((label, colour))
    svg = line_chart(series, plot.unit, plot.log)
    return {"label": plot.label, "svg": svg, "legend": legend if len(legend) > 1 else []}


def _curve(name: str, known: dict[str, Curve]) -> Curve:
    """A curve; counts, which are logged where there is something to count, with their zeros."""
    if not name.startswith("rollouts/"):
        return known.get(name, [])
    counted = dict(known.get(name, []))
    return [(step, counted.get(step, 0.0)) for step, _ in known.get("rollout/len_mean", [])]


def _zero(plot: Plot, known: dict[str, Curve]) -> Iterable[str]:
    for name, label in plot.curves.items():
        if known.get(name) and not _moves(known[name]):
            yield f"{plot.label.lower()} ({label})"


def _moves(curve: Curve) -> bool:
    return any(value for _, value in curve)


def _mean(curve: Curve) -> float:
    return sum(value for _, value in curve) / len(curve)
