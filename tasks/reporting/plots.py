"""The charts of a training stage: which curves are drawn, and how."""

from dataclasses import dataclass
from typing import Any

from tasks.reporting.charts import Series, line_chart, smooth
from tasks.reporting.facts import Curve, Facts


@dataclass(frozen=True)
class Plot:
    label: str
    trained: tuple[str, ...]  # names of the metric, the first that was logged counts
    held: tuple[str, ...] = ()  # the same on what is held out
    unit: str = ""
    steady: bool = False  # needs no smoothing
    log: bool = False


PLOTS = (
    Plot("Loss", ("train/lm_loss", "train/loss"), ("val/loss",), "nats per token"),
    Plot("Multi-token prediction loss", ("train/mtp_loss",), (), "nats per token"),
    Plot("Indexer KL", ("dsa/indexer_kl",), (), "nats"),
    Plot("Learning rate", ("optim/lr",), steady=True),
    Plot("Gradient norm", ("optim/grad_norm",)),
    Plot("Throughput", ("perf/tokens_per_s",), (), "tokens per second", steady=True),
    Plot("Load of the busiest expert", ("moe/max_violation",), (), "above the mean, share"),
)
# In the warm-up the loss is the indexer's KL.
WARMUP_PLOTS = (
    Plot("Indexer KL", ("train/loss",), ("dsa/indexer_kl",), "nats, log scale", log=True),
    Plot("Top-k recall", (), ("dsa/topk_recall",), "share of the best possible k"),
    *(plot for plot in PLOTS if plot.label in ("Learning rate", "Gradient norm", "Throughput")),
)


def charts(facts: Facts, name: str) -> dict[str, Any]:
    """The charts of a training stage: a running mean over the raw line, held-out values beside it."""
    stage = facts.stages[name]
    drawn = [
        {"label": plot.label, "svg": _draw(plot, stage.curves)}
        for plot in (WARMUP_PLOTS if name == "dsa_warmup" else PLOTS)
    ]
    shown = [chart for chart in drawn if chart["svg"]]
    return {"name": name, "description": stage.description, "charts": shown, "record": stage.record}


def _draw(plot: Plot, known: dict[str, Curve]) -> str:
    raw = next((known[key] for key in plot.trained if key in known), [])
    series = [Series("each step", raw, 1, faint=not plot.steady)]
    if not plot.steady:
        series.append(Series("running mean", smooth(raw), 1))
    series += [Series("held out", known[key], 2) for key in plot.held if key in known]
    return line_chart(series, plot.unit, plot.log)
