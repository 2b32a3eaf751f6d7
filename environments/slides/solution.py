"""The oracle's page for what a slide shall say, and how it gets there."""

from environments.slides.drawing import Piece

PALETTES = {  # background, text, accent
    "light": ("#f7f5f0", "#22303c", "#1f5f8b"),
    "dark": ("#16202a", "#f2efe8", "#8fc1e3"),
}
ITEM_GAP = {3: 56, 4: 40, 5: 28}  # px between bullets, by their number

_SHEETS = {
    "title": "body{{display:flex;flex-direction:column;justify-content:center;align-items:center}}"
    "h1{{font-size:72px}}p{{font-size:36px;margin-top:20px}}",
    "bullets": "h1{{font-size:56px;margin-bottom:48px}}li{{font-size:36px;margin-bottom:{gap}px}}",
    "table": "h1{{font-size:56px;margin-bottom:40px}}table{{width:1000px;border-collapse:collapse}}"
    "th,td{{font-size:32px;padding:20px 0;text-align:left}}th{{color:{accent}}}",
    "columns": "h1{{font-size:56px}}main{{display:flex;gap:80px;margin-top:48px}}section{{width:460px}}"
    "h2{{font-size:44px;color:{accent}}}p{{font-size:36px;line-height:1.4;margin-top:24px}}",
}
_STEPS = {
    "title": "Title and subtitle stand in the middle, one below the other.",
    "bullets": "The title stands on top; {count} bullets share the height below it.",
    "table": "The title stands on top; {count} cells in rows below it, the first row as its head.",
    "columns": "The title stands on top; two sections of equal width stand side by side below it.",
}


def solve(family: str, tone: str, pieces: list[Piece]) -> tuple[str, str]:
    """The steps and the document."""
    background, text, accent = PALETTES[tone]
    gap = ITEM_GAP.get(len(pieces) - 1, 0)
    sheet = (
        "*{margin:0;padding:0}body{width:1280px;height:720px;box-sizing:border-box;padding:64px 140px;"
        f"font-family:Arial,sans-serif;background:{background};color:{text}}}h1{{color:{accent}}}"
        + _SHEETS[family].format(accent=accent, gap=gap)
    )
    title, *rest = (f"<{piece['tag']}>{piece['text']}</{piece['tag']}>" for piece in pieces)
    body = title + _arrange(family, rest, [piece["tag"] for piece in pieces[1:]])
    steps = (
        f"A {tone} slide: background {background}, text {text}, accent {accent}. "
        f"{_STEPS[family].format(count=len(rest))} The body is 1280x720 px with its padding inside."
    )
    document = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">\n<style>{sheet}</style></head>\n'
        f"<body>{body}</body>\n</html>"
    )
    return steps, document


def _arrange(family: str, parts: list[str], tags: list[str]) -> str:
    if family == "bullets":
        return f"<ul>{''.join(parts)}</ul>"
    if family == "columns":
        sections = (f"<section>{''.join(parts[at : at + 2])}</section>" for at in (0, 2))
        return f"<main>{''.join(sections)}</main>"
    if family == "table":
        width = tags.count("th")
        rows = (f"<tr>{''.join(parts[at : at + width])}</tr>" for at in range(0, len(parts), width))
        return f"<table>{''.join(rows)}</table>"
    return "".join(parts)
