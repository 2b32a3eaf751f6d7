"""Level 2: what the boxes of a rendered page say (paper, section 4.2.5: widths, heights, overflow)."""

from collections.abc import Iterator
from dataclasses import astuple
from itertools import combinations, pairwise

from environments.slides.browser import HEIGHT, WIDTH
from environments.slides.rendering import SLIDE, Rect, Rendering

SLACK = 1.5  # px
LEAST_SIZE = 20.0  # px, rendered
# The box of a line is as high as its font, some 1.15 times the size; titles often have less line height.
FONT_SLACK = 0.25  # of the font size
COLLISION = 0.25  # of the smaller of two lines' areas
NORMAL_CONTRAST, LARGE_CONTRAST = 4.5, 3.0  # WCAG 2, level AA


def layout_faults(page: Rendering, family: str, pieces: list[tuple[str, str]]) -> list[str]:
    """The rules of level 2 that are broken, one sentence each."""
    checks = (_ratio, _inside, _clipped, _collisions, _size, _contrast)
    faults = [fault for check in checks if (fault := check(page))]
    return faults if arranged(page, family, pieces) else [*faults, "the parts are not arranged as asked"]


def _ratio(page: Rendering) -> str | None:
    """The body is the slide, 16:9, and nothing makes it scroll."""
    if not (page.body.within(SLIDE, SLACK) and SLIDE.within(page.body, SLACK)):
        edges = ", ".join(f"{edge:g}" for edge in astuple(page.body))
        return f"the body reaches over ({edges}) instead of (0, 0, {WIDTH}, {HEIGHT})"
    return f"the page scrolls to {page.scroll}" if page.scroll[0] > WIDTH or page.scroll[1] > HEIGHT else None


def _inside(page: Rendering) -> str | None:
    outside = sum(not box.within(SLIDE, SLACK) for box in [*page.boxes, *page.lines])
    return f"{outside} boxes reach beyond the slide" if outside else None


def _clipped(page: Rendering) -> str | None:
    """With overflow visible, text that would be cut stands out of a box that holds it."""
    for text in page.texts:
        slack = FONT_SLACK * text.size + SLACK
        if not all(line.within(holder, slack) for line in text.lines for holder in text.holders):
            return f"{text.text[:30]!r} stands out of its box"
    return None


def _collisions(page: Rendering) -> str | None:
    found = sum(
        one.common(other).area > COLLISION * min(one.area, other.area)
        for one, other in combinations(page.lines, 2)
    )
    return f"{found} pairs of lines overlap" if found else None


def _size(page: Rendering) -> str | None:
    least = min((text.size for text in page.texts), default=LEAST_SIZE)
    return f"a font of {least:g} px" if least < LEAST_SIZE else None


def _contrast(page: Rendering) -> str | None:
    for text in page.texts:
        if text.contrast < (LARGE_CONTRAST if text.large else NORMAL_CONTRAST):
            return f"{text.text[:30]!r} has a contrast of {text.contrast:.1f}"
    return None


def arranged(page: Rendering, family: str, pieces: list[tuple[str, str]]) -> bool:
    """Whether the parts stand as the family wants: below each other, side by side, in rows and columns."""
    places = list(_places(page, pieces))
    if len(places) < len(pieces):
        return False
    if family == "columns":
        title, one, first, two, second = places
        return (
            _below(title, one) and _below(title, two) and _below(one, first) and _below(two, second)
            and max(one.right, first.right) <= min(two.left, second.left) + SLACK
            and abs(one.top - two.top) <= 8
        )  # fmt: skip
    if family == "table":
        width = sum(tag == "th" for tag, _ in pieces)
        title, *cells = places
        rows = [cells[at : at + width] for at in range(0, len(cells), width)]
        across = all(a.right <= b.left + SLACK for row in rows for a, b in pairwise(row))
        down = all(_below(a, b) for upper, lower in pairwise(rows) for a, b in zip(upper, lower, strict=True))
        return across and down and _below(title, rows[0][0])
    return all(_below(a, b) for a, b in pairwise(places))


def _below(one: Rect, other: Rect) -> bool:
    """Whether ``other`` begins in the last quarter of ``one`` or under it (lines overlap a little)."""
    return other.top >= (one.top + 3 * one.bottom) / 4 - SLACK


def _places(page: Rendering, pieces: list[tuple[str, str]]) -> Iterator[Rect]:
    """The rectangle around the lines of each piece that is there, each element taken once."""
    free = list(range(len(page.owners)))
    for piece in pieces:
        owner = next((index for index in free if page.owners[index] == piece), None)
        lines = [line for text in page.texts if text.owner == owner for line in text.lines]
        if owner is None or not lines:
            continue
        free.remove(owner)
        yield Rect(
            min(line.left for line in lines), min(line.top for line in lines),
            max(line.right for line in lines), max(line.bottom for line in lines),
        )  # fmt: skip
