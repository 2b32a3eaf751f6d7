"""Numbers and texts as a reader wants them."""

import html
import re

from markupsafe import Markup

from model.config import SPECIAL_TOKENS

_SPECIAL = re.compile("(" + "|".join(map(re.escape, sorted(SPECIAL_TOKENS, key=len, reverse=True))) + ")")


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``38 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(value: float | None) -> str:
    """``987``, ``12,345``, ``1.57 M``, ``743.9 B``."""
    if value is None:
        return "–"
    for size, suffix in ((1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g} {suffix}"
    return f"{value:,.0f}"


def megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f} MB" if value < 1e9 else f"{value / 2**30:,.1f} GiB"


def number(value: float) -> str:
    """Four digits, and whole numbers from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def operations(value: float | None) -> str:
    """FLOPs with a prefix: ``431 M``, ``4.5 T``, ``12 P``."""
    if value is None:
        return "–"
    size, prefixes = float(f"{value:.3g}"), " kMGTPEZY"  # rounded before a prefix is chosen: no 1e+03 G
    thousands = 0
    while size >= 1000 and thousands < len(prefixes) - 1:
        size, thousands = size / 1000, thousands + 1
    return f"{size:.3g} {prefixes[thousands]}".rstrip()


def commit(text: str) -> str:
    """``abcdef012345``, ``abcdef012345+changes``, ``unknown``."""
    name, plus, changes = text.partition("+")
    return name[:12] + plus + changes


def score(value: float | None, kind: str) -> str:
    """``kind``: share, gap (both in per cent), bits, nats, rating (in points of Elo)."""
    if value is None:
        return "–"
    if kind == "share":
        whole = value in (0, 1) or 0.1 <= value < 0.995  # 99.7 % is not 100 %
        return f"{100 * value:.0f} %" if whole else f"{100 * value:.1f} %"
    if kind == "gap":
        return f"{100 * value:+.2f} %"
    if kind == "rating":
        return f"{value:.0f}"
    return f"{value:.3f}"


def interval(low: float | None, high: float | None, kind: str) -> str:
    if low is None or high is None:
        return "one item"
    if kind == "share":
        return f"{100 * low:.0f}–{100 * high:.0f}"
    if kind == "gap":
        return f"{100 * low:+.2f} to {100 * high:+.2f}"
    if kind == "rating":
        return f"{low:.0f}–{high:.0f}"
    return f"{low:.3f}–{high:.3f}"


def marked(text: str) -> Markup:
    """The text with special tokens set apart."""
    parts = _SPECIAL.split(text)
    shown = [
        f'<span class="tok">{html.escape(part)}</span>' if number % 2 else html.escape(part)
        for number, part in enumerate(parts)
    ]
    return Markup("".join(shown))


def visible(text: str) -> str:
    """A token with its line breaks shown."""
    return text.replace("\n", "⏎\n")
