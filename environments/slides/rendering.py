"""Measurements of one rendered page as numbers: lines of text, colours, contrast. Lengths are CSS pixels."""

import re
from dataclasses import dataclass
from typing import Any

from environments.slides.browser import HEIGHT, WIDTH

HIDDEN_CONTRAST = 1.5  # below this ratio of WCAG text counts as hidden, not as faint
HIDDEN_SIZE = 8.0  # px
Colour = tuple[float, float, float]  # red, green and blue, each of 255


@dataclass(frozen=True)
class Rect:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)

    def common(self, other: "Rect") -> "Rect":
        return Rect(
            max(self.left, other.left), max(self.top, other.top),
            min(self.right, other.right), min(self.bottom, other.bottom),
        )  # fmt: skip

    def within(self, other: "Rect", slack: float) -> bool:
        return (
            self.left >= other.left - slack and self.top >= other.top - slack
            and self.right <= other.right + slack and self.bottom <= other.bottom + slack
        )  # fmt: skip


SLIDE = Rect(0, 0, WIDTH, HEIGHT)


@dataclass(frozen=True)
class Text:
    """One text node: ``owner`` is the index of the element h1 to td that holds it, -1 for none."""

    text: str
    owner: int
    lines: list[Rect]
    holders: list[Rect]  # the boxes that it must not leave
    size: float
    large: bool  # in the sense of WCAG 2: from 24 px, bold from 18.66 px
    contrast: float  # the least of its points that lie on the slide
    covered: bool

    @property
    def hidden(self) -> str | None:
        """Why nobody can read it, where nobody can."""
        if sum(line.common(SLIDE).area for line in self.lines) <= sum(line.area for line in self.lines) / 2:
            return "is not on the slide"
        if self.size < HIDDEN_SIZE:
            return f"has {self.size:g} px"
        if self.covered:
            return "lies behind another box"
        return "has the colour of its background" if self.contrast < HIDDEN_CONTRAST else None


@dataclass(frozen=True)
class Rendering:
    texts: list[Text]
    owners: list[tuple[str, str]]  # tag and text of each element h1 to td
    body: Rect
    boxes: list[Rect]  # of all elements
    scroll: tuple[float, float]  # width and height of the page's scrollable area
    grounds: list[Colour]  # background at a grid of points, 80 px apart

    @property
    def lines(self) -> list[Rect]:
        return [line for text in self.texts for line in text.lines]


def read_rendering(raw: dict[str, Any]) -> Rendering:
    """From an entry of what ``measure.js`` says."""
    return Rendering(
        texts=[_text(text) for text in raw["texts"]],
        owners=[(owner["tag"], " ".join(owner["text"].split())) for owner in raw["owners"]],
        body=Rect(*raw["body"]),
        boxes=[Rect(*box) for box in raw["boxes"]],
        scroll=tuple(raw["scroll"]),
        grounds=[blend(layers) for layers in raw["grid"]],
    )


def _text(raw: dict[str, Any]) -> Text:
    points = raw["points"]
    contrasts = []
    for point in points:
        ground = blend(point["under"])
        contrasts.append(contrast(_over(_channels(raw["colour"]), ground), ground))
    return Text(
        text=" ".join(raw["text"].split()),
        owner=raw["owner"],
        lines=[Rect(*line) for line in raw["lines"]],
        holders=[Rect(*holder) for holder in raw["holders"]],
        size=raw["size"],
        large=raw["size"] >= (18.66 if raw["bold"] else 24),
        contrast=min(contrasts, default=1.0),
        covered=any(_channels(colour)[3] > 0 for point in points for colour in point["over"]),
    )


def _channels(colour: str) -> tuple[float, float, float, float]:
    """Red, green, blue of 255 and alpha of a computed ``rgb()`` or ``rgba()``."""
    red, green, blue, *alpha = map(float, re.findall(r"[\d.]+", colour))
    return red, green, blue, alpha[0] if alpha else 1.0


def _over(colour: tuple[float, float, float, float], ground: Colour) -> Colour:
    *channels, alpha = colour
    return tuple(alpha * c + (1 - alpha) * g for c, g in zip(channels, ground, strict=True))


def blend(layers: list[str]) -> Colour:
    """The colour that is seen of layers, the uppermost first, on a white page."""
    ground: Colour = (255.0, 255.0, 255.0)
    for layer in reversed(layers):
        ground = _over(_channels(layer), ground)
    return ground


def luminance(colour: Colour) -> float:
    """Relative luminance in [0, 1], WCAG 2."""
    linear = [
        share / 12.92 if (share := channel / 255) <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for channel in colour
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    """Contrast ratio of WCAG 2, 1 to 21."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
