"""The runs for the page: curves of a training stage, cost of every stage, versions and hosts."""

from typing import Any

from tasks.reporting.charts import Series, line_chart, smooth
from tasks.reporting.facts import Facts

PLOTS = (
    ("Loss", ("train/lm_loss", "train/loss"), ("val/loss",), "nats per token"),
    ("Indexer KL", ("dsa/indexer_kl",), (), "nats"),
    ("Top-k recall", ("dsa/topk_recall",), ("val/topk_recall",), ""),
    ("Multi-token prediction loss", ("train/mtp_loss",), (), "nats per token"),
    ("Learning rate", ("optim/lr",), (), ""),
    ("Gradient norm", ("optim/grad_norm",), (), ""),
    ("Throughput", ("perf/tokens_per_s",), (), "tokens per second"),
    ("Load of the busiest expert", ("moe/max_violation",), (), "above the mean, share"),
)  # fmt: skip


def curves(facts: Facts, name: str) -> dict[str, Any]:
    """The charts of a training stage: a smoothed line over the raw one, validation in a second colour."""
    stage = facts.stages[name]
    charts = []
    for label, trained, held, unit in PLOTS:
        raw = next((stage.curves[key] for key in trained if key in stage.curves), [])
        if label == "Indexer KL" and name == "dsa_warmup":
            unit = "nats, log scale"
        steady = label in ("Learning rate", "Throughput", "Top-k recall")
        series = (
            [Series("step", raw, 1)]
            if steady
            else [Series("step", raw, 1, faint=True), Series("mean", smooth(raw), 1)]
        )
        series += [Series("held out", stage.curves[key], 2) for key in held if key in stage.curves]
        svg = line_chart(series, unit, log="log" in unit)
        if svg:
            charts.append({"label": label, "svg": svg, "held": any(key in stage.curves for key in held)})
    return {"name": name, "description": stage.description, "charts": charts, "record": stage.record}


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
