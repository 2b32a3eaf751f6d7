"""Is what was asked for on the page, as text, in the right elements (level 1)?"""

from collections import Counter
from typing import Any

from environments.slides.markup import TEXT, Element, Page


def pieces(truth: dict[str, Any]) -> list[tuple[str, str]]:
    """What a slide must show, in reading order, as element and text."""
    return [(piece["tag"], piece["text"]) for piece in truth["pieces"]]


def compare(page: Page, truth: dict[str, Any]) -> tuple[float, bool]:
    """The share of the wanted pieces that is there, and whether there is other text beside them."""
    read = ((element.tag, element.text()) for element in page.body.elements() if element.tag in TEXT)
    there = Counter(piece for piece in read if piece[1])
    wanted = Counter(pieces(truth))
    found = there & wanted
    return found.total() / wanted.total(), bool(there - wanted) or _loose(page.body)


def _loose(element: Element) -> bool:
    """Whether text stands outside the elements that hold text."""
    return any(
        child.strip() != "" if isinstance(child, str) else child.tag not in TEXT and _loose(child)
        for child in element.children
    )
