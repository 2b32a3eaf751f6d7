"""HTML slides judged by rules and by rendering (paper, section 4.2.5): markup, boxes, look.

The answer is one document of 1280x720 px. It is checked and written anew before a browser sees it, measured
from outside with its scripts off, and judged by the text that can be read. Without a Chromium tasks can be
made and solved but not played.
"""

import random

from environments.episode import OneMessageEpisode, answer
from environments.interface import Draft, Environment, Episode, Message, Mode, Task, Verdict
from environments.slides.browser import find_browser
from environments.slides.drawing import FAMILIES, Piece
from environments.slides.judge import judge_pages, read_document
from environments.slides.solution import solve

UNSEEN = ("columns",)
_NAMES = {
    "h1": "Title (h1)", "h2": "Heading (h2)", "p": "Text (p)", "li": "Bullet (li)", "th": "Head (th)",
    "td": "Cells (td), row by row",
}  # fmt: skip
_ASKED = {
    "title": "a title and a text below it",
    "bullets": "a title and bullets below it",
    "table": "a title and a table below it",
    "columns": "a title and two columns below it, each a heading with a text",
}
RULES = (
    "Font sizes in px: at most 4 of 20, 24, 28 ... 72. At most 6 flat colours, written #rrggbb. Nothing "
    "else: no scripts, images, links, transforms, hidden or cut parts. Answer with one whole HTML document."
)


class SlideEpisode(OneMessageEpisode):
    def __init__(self, program: str):
        self._program = program

    def read(self, content: object) -> str | None:
        return read_document(content)

    async def judge(self, said: str) -> Verdict:
        [verdict] = await judge_pages(self._program, [self.task], [said])
        return verdict


class Slides(Environment):
    """``program`` is the path of a Chromium; without one it is looked for when an episode begins."""

    name = "slides"
    families = tuple(family for family in FAMILIES if family not in UNSEEN)
    evaluation_only = UNSEEN

    def __init__(self, program: str | None = None):
        self._program = program

    def draw(self, family: str, rng: random.Random) -> Draft:
        tone = rng.choice(("light", "dark"))
        pieces = FAMILIES[family](rng)
        other = "dark" if tone == "light" else "light"
        prompt = (
            f"Make a slide of 1280x720 px: {_ASKED[family]}, {other} text on a {tone} background.\n"
            f"{_content(pieces)}\n{RULES}"
        )
        truth = {"pieces": pieces, "tone": tone}
        return Draft(({"role": "user", "content": prompt},), truth, difficulty=len(pieces))

    def episode(self) -> Episode:
        """Raises ``UserError`` where there is no browser: no policy is asked for what cannot be judged."""
        return SlideEpisode(self._program or find_browser())

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        steps, document = solve(task.family, task.truth["tone"], task.truth["pieces"])
        return [answer(None if mode == "off" else steps, document)]


def _content(pieces: list[Piece]) -> str:
    """The wanted texts, those of a kind that follow each other on one line."""
    lines: list[str] = []
    last = None
    for piece in pieces:
        if piece["tag"] == last and last in ("th", "td"):
            lines[-1] += f" | {piece['text']}"
        else:
            lines.append(f"{_NAMES[piece['tag']]}: {piece['text']}")
        last = piece["tag"]
    return "\n".join(lines)
