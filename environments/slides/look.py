"""Level 3: what the eye sees first, from the boxes of lines of text: emptiness, balance, tone.

Padding and stretched boxes have no lines, so they fill nothing. AeSlides (arXiv 2604.22840) measures blank
space and imbalance too; all thresholds here are our choice.
"""

from environments.slides.browser import HEIGHT, WIDTH
from environments.slides.rendering import SLIDE, Rendering, luminance

# Least share of the slide under lines of text, by family: half to a third of what large plain text covers.
INK = {"title": 0.03, "bullets": 0.08, "table": 0.04, "columns": 0.08}
BAND = 0.5  # of the height: the largest that no line of text may touch
BALANCE = 0.3  # of the width: how far the centre of the text may lie from the middle
TONES = {"light": (0.6, 1.0), "dark": (0.0, 0.15)}  # relative luminance of the background
TONE_SHARE = 0.5  # of the slide


def look_faults(page: Rendering, family: str, tone: str) -> list[str]:
    """The rules of level 3 that are broken, one sentence each."""
    found = []
    lines = [line.common(SLIDE) for line in page.lines]
    area = sum(line.area for line in lines)
    if area < INK[family] * SLIDE.area:
        found.append(f"text covers {area / SLIDE.area:.1%} of the slide")
    if (band := empty_band([(line.top, line.bottom) for line in lines])) > BAND * HEIGHT:
        found.append(f"{band:.0f} px of the height are empty")
    if (
        area
        and abs(sum(line.area * (line.left + line.right) / 2 for line in lines) / area / WIDTH - 0.5)
        > BALANCE
    ):
        found.append("all text is at one side")
    least, most = TONES[tone]
    if sum(least <= luminance(ground) <= most for ground in page.grounds) < TONE_SHARE * len(page.grounds):
        found.append(f"the background is not {tone}")
    return found


def empty_band(spans: list[tuple[float, float]]) -> float:
    """The largest height in px between the slide's edges that no span (top, bottom) touches."""
    reached, largest = 0.0, 0.0
    for top, bottom in sorted(spans):
        largest, reached = max(largest, top - reached), max(reached, bottom)
    return max(largest, HEIGHT - reached)
