"""The picture of the graph: one row a stage, its edges as arcs in the gutter, its time as a bar."""

from dataclasses import dataclass

from pipeline.artifacts import ended
from tasks.reporting.facts import Facts, StageFacts

ROW = 46  # pixels, also in the style sheet
GUTTER = 84


@dataclass(frozen=True)
class Row:
    name: str
    description: str
    status: str  # "done", "missing" or "this page"
    seconds: float | None
    left: float  # of the bar, percent of the whole time
    width: float
    key: str  # its most telling number


def reduced_edges(inputs: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Edges that no longer path implies: the fewest lines that show the same order."""
    above: dict[str, set[str]] = {}
    for name, sources in inputs.items():
        known = [source for source in sources if source in inputs]
        above[name] = set(known).union(*(above[source] for source in known))
    return [
        (source, name)
        for name, sources in inputs.items()
        for source in sources
        if source in inputs and not any(source in above[other] for other in sources if other in inputs)
    ]


def gutter(facts: Facts) -> str:
    """An SVG as tall as the rows: dots on a line, longer edges as arcs to the left."""
    names = [*facts.stages, "report"]
    inputs = {name: stage.inputs for name, stage in facts.stages.items()} | {"report": tuple(facts.stages)}
    done = {name for name, stage in facts.stages.items() if stage.record} | {"report"}
    return _picture(names, reduced_edges(inputs), done)


def timeline(facts: Facts, keys: dict[str, str]) -> list[Row]:
    """Rows in graph order; bars are placed by when each stage really ran, gaps between runs taken out."""
    stages = list(facts.stages.values())
    starts = _without_gaps([stage for stage in stages if stage.record])
    whole = max((start + facts.stages[name].record["seconds"] for name, start in starts.items()), default=1.0)
    rows = [_row(stage, starts.get(stage.name), whole, keys.get(stage.name, "")) for stage in stages]
    return [*rows, Row("report", "the report card", "this page", None, 0, 0, "")]


def _row(stage: StageFacts, start: float | None, whole: float, key: str) -> Row:
    if stage.record is None or start is None:
        return Row(stage.name, stage.description, "missing", None, 0, 0, "")
    seconds = stage.record["seconds"]
    left, width = 100 * start / whole, max(100 * seconds / whole, 0.4)
    return Row(stage.name, stage.description, "done", seconds, left, width, key)


def _without_gaps(stages: list[StageFacts]) -> dict[str, float]:
    """Start of each stage in seconds of working time: stretches in which nothing ran are cut out.

    One that was interrupted is placed as if it had run without a pause to its end.
    """
    offset, end = 0.0, None
    starts = {}
    begins = {stage.name: ended(stage.record) - stage.record["seconds"] for stage in stages}
    for stage in sorted(stages, key=lambda stage: begins[stage.name]):
        begun = begins[stage.name]
        if end is None or begun > end:
            offset += begun - (end if end is not None else 0.0)
        starts[stage.name] = begun - offset
        end = max(end or begun, begun + stage.record["seconds"])
    return starts


def _picture(names: list[str], edges: list[tuple[str, str]], done: set[str]) -> str:
    place = {name: index for index, name in enumerate(names)}
    x = GUTTER - 12
    height = ROW * len(names)
    parts = [_edge(x, place[source], place[target]) for source, target in edges]
    for name, index in place.items():
        kind = "dot" if name in done else "dot open"
        parts.append(f'<circle class="{kind}" cx="{x}" cy="{_middle(index)}" r="5"/>')
    return (
        f'<svg class="gutter" width="{GUTTER}" height="{height}" viewBox="0 0 {GUTTER} {height}" '
        f'role="img" aria-label="which stage reads which">{"".join(parts)}</svg>'
    )


def _middle(index: int) -> float:
    return ROW * index + ROW / 2


def _edge(x: float, source: int, target: int) -> str:
    y1, y2 = _middle(source), _middle(target)
    if target == source + 1:
        return f'<path class="edge" d="M{x} {y1}V{y2}"/>'
    depth = min(GUTTER - 18, 16 + 11 * (target - source))
    return f'<path class="edge" d="M{x} {y1}C{x - depth} {y1},{x - depth} {y2},{x} {y2}"/>'
