"""The runs for the page: curves of a training stage, cost of every stage, versions and hosts."""

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


def curves(facts: Facts, name: str) -> dict[str, Any]:
    """The charts of a training stage: a running mean over the raw line, held-out values beside it."""
    stage = facts.stages[name]
    drawn = [
        {"label": plot.label, "svg": _draw(plot, stage.curves)}
        for plot in (WARMUP_PLOTS if name == "dsa_warmup" else PLOTS)
    ]
    charts = [chart for chart in drawn if chart["svg"]]
    return {"name": name, "description": stage.description, "charts": charts, "record": stage.record}


def _draw(plot: Plot, known: dict[str, Curve]) -> str:
    raw = next((known[key] for key in plot.trained if key in known), [])
    series = [Series("each step", raw, 1, faint=not plot.steady)]
    if not plot.steady:
        series.append(Series("running mean", smooth(raw), 1))
    series += [Series("held out", known[key], 2) for key in plot.held if key in known]
    return line_chart(series, plot.unit, plot.log)


def cost(facts: Facts, name: str) -> dict[str, Any]:
    stage = facts.stages[name]
    record = stage.record
    rates = [value for _, value in stage.curves.get("perf/tokens_per_s", [])]
    return {
        "name": name,
        "seconds": record["seconds"],
        "tokens": record["facts"].get("tokens"),
        "rate": sorted(rates)[len(rates) // 2] if rates else None,
        "memory": record["peak_memory_bytes"],
        "device": record["facts"].get("device", "cpu"),
        "identity": record["identity"],
        "content": record["content"],
        "commit": record.get("git_commit") or "unknown",
        "bytes": sum(size for size, _ in record["files"].values()),
    }


def versions(facts: Facts) -> dict[str, Any]:
    """Packages and host, from the newest record; records that differ from it are named."""
    records = [stage.record for stage in facts.stages.values() if stage.record]
    if not records:
        return {}
    newest = max(records, key=lambda record: record["started"])
    differing = sorted(
        record["stage"]
        for record in records
        if record["packages"] != newest["packages"] or record["host"] != newest["host"]
    )
    return {
        "python": newest["python"],
        "packages": newest["packages"],
        "host": newest["host"],
        "commits": list(dict.fromkeys(r.get("git_commit") or "unknown" for r in records)),
        "seed": next((r["seed"] for r in records if r["stage"] == "pretrain"), newest["seed"]),
        "differing": differing,
    }
