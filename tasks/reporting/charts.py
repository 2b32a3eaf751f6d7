"""Line charts as inline SVG. Colours are CSS variables of the page, so that they follow light and dark."""

import math
from dataclasses import dataclass
from html import escape

from tasks.reporting.facts import Curve

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 42, 12, 14, 26
POINTS = 160  # more are not seen at this size


@dataclass(frozen=True)
class Series:
    label: str
    curve: Curve
    colour: int = 1  # --c1 .. --c6
    faint: bool = False  # drawn thin, behind a smoothed line


def line_chart(series: list[Series], unit: str = "", log: bool = False) -> str:
    """An SVG of the series over steps; '' when none has two points. ``log`` needs positive values."""
    series = [Series(s.label, thin(s.curve), s.colour, s.faint) for s in series if len(s.curve) > 1]
    if not series:
        return ""
    xs = [x for s in series for x, _ in s.curve]
    ys = [y for s in series for _, y in s.curve if not log or y > 0]
    if not ys:
        return ""
    scale_x = _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    low, high = _range(ys, log)
    scale_y = _Scale(low, high, HEIGHT - BOTTOM, TOP, log)
    parts = [_grid(scale_x, scale_y, unit, log)]
    parts += [_path(s, scale_x, scale_y, log) for s in series]
    labels = ", ".join(dict.fromkeys(s.label for s in series))
    body = "".join(parts)
    frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(labels)}"'
    return f'<svg class="chart" {frame}>{body}</svg>'


def sparkline(curve: Curve, low: float, high: float) -> str:
    """A line without axes, for a row of a table; '' for fewer than two points."""
    if len(curve) < 2:
        return ""
    scale_x = _Scale(curve[0][0], curve[-1][0], 2, 118)
    scale_y = _Scale(low, high, 22, 2)
    path = _path(Series("", thin(curve)), scale_x, scale_y, False)
    return f'<svg class="sparkline" viewBox="0 0 120 24" aria-hidden="true">{path}</svg>'


def thin(curve: Curve) -> Curve:
    """At most ``POINTS`` points: means over equal stretches, so that no peak is picked by chance."""
    if len(curve) <= POINTS:
        return curve
    size = math.ceil(len(curve) / POINTS)
    groups = [curve[at : at + size] for at in range(0, len(curve), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def smooth(curve: Curve, share: float = 0.06) -> Curve:
    """Exponential mean with a memory of ``share`` of the curve, corrected for its start."""
    memory = max(1.0, share * len(curve))
    keep = 1 - 1 / memory
    total = weight = 0.0
    result = []
    for x, y in curve:
        total, weight = keep * total + y, keep * weight + 1
        result.append((x, total / weight))
    return result


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round values between ``low`` and ``high``, about ``count`` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9) * step
    return [first + n * step for n in range(int((high - first) / step + 1e-9) + 1)]


def short(value: float, digits: int = 3) -> str:
    """A number for an axis: 1.5k, 20M, 0.003."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{suffix}"
    if value and abs(value) < 0.001:
        return f"{value:.{digits - 3}e}".replace("e-0", "e-")
    return f"{value:.{digits}g}"


def axis_labels(values: list[float]) -> list[str]:
    """``short`` of each, with as many digits as tell them apart."""
    for digits in range(3, 12):
        texts = [short(value, digits) for value in values]
        if len({*texts}) == len(values):
            break
    return texts


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = math.log(value) if self.log else value
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)


def _range(values: list[float], log: bool) -> tuple[float, float]:
    """Bounds with a little air. The highest 2 % (a first step far above the rest) may leave the picture."""
    values = sorted(values)
    high = values[min(len(values) - 1, int(0.98 * len(values)))] if len(values) > 50 else values[-1]
    low = values[0]
    if log:
        return low / 1.1, max(high, low * 1.01) * 1.1
    if low == high > 0:
        return 0.0, 1.25 * high
    air = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    return (0.0 if 0 <= low < 0.3 * high else low - air), high + air


def _grid(scale_x: _Scale, scale_y: _Scale, unit: str, log: bool) -> str:
    if log:
        marks = [10.0**n for n in range(-16, 10) if scale_y.low <= 10.0**n <= scale_y.high]
        marks = marks[:: 1 + len(marks) // 7]
        marks = marks if len(marks) > 1 else [scale_y.low * 1.1, scale_y.high / 1.1]
    else:
        marks = ticks(scale_y.low, scale_y.high)
    lines = []
    for value, text in zip(marks, axis_labels(marks), strict=True):
        y = scale_y.at(value)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>')
    # Steps and tokens are counted: no tick between two of them.
    for value in sorted({float(round(value)) for value in ticks(scale_x.low, scale_x.high, 5)}):
        x = scale_x.at(value)
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{short(value)}</text>')
    if unit:
        lines.append(f'<text class="unit" x="{WIDTH - RIGHT}" y="{TOP - 4}" text-anchor="end">{unit}</text>')
    return "".join(lines)


def _path(series: Series, scale_x: _Scale, scale_y: _Scale, log: bool) -> str:
    points = [(x, y) for x, y in series.curve if not log or y > 0]
    clipped = [(scale_x.at(x), scale_y.at(min(y, scale_y.high))) for x, y in points]
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in clipped)
    kind = "line faint" if series.faint else "line"
    return f'<path class="{kind}" style="stroke:var(--c{series.colour})" d="{d}"/>'
