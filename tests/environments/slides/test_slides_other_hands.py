"""Pages that the oracle would not write, in usual manners, keep all rules: those are not its habits."""

import asyncio

import pytest

from environments.slides.judge import judge_pages
from tests.environments.slides.conftest import SLIDES

TASK = next(
    task for task in (SLIDES.make_task("bullets", n) for n in range(50)) if task.truth["tone"] == "light"
)
TITLE, *ITEMS = (piece["text"] for piece in TASK.truth["pieces"])
PAGE = "body{margin:0;width:1280px;height:720px;background:#ffffff;color:#1a1a1a;font-family:Georgia,serif}"
SLIDE = ".slide { width: 1280px; height: 720px; padding: 80px; box-sizing: border-box; "
CENTRED = SLIDE + "display: flex; flex-direction: column; justify-content: center; }"
TYPE = "h1 { font-size: 64px; margin: 0 0 40px; color: #003366 } li { font-size: 36px; line-height: 1.5 }"
CARDS = (
    "h1{font-size:56px;letter-spacing:1px;border-bottom:4px solid #1f5f8b}ul{padding:0}"
    "li{font-size:32px;list-style:none;background:#e6ebef;border-radius:8px;"
    "padding:12px 16px;margin-bottom:12px}"
)
PLACED = (
    ".slide{position:absolute;inset:0}h1,ul{position:absolute;left:120px;margin:0}h1{top:60px;font-size:60px}"
    "ul{top:200px}li{font-size:36px;margin-bottom:40px;text-transform:uppercase}"
)
PANEL = (
    "header{background:#12345a;color:#ffffff;padding:40px 80px}h1{margin:0;font-size:56px}"
    "ul{padding:20px 120px}li{font-size:36px;margin-bottom:32px}"
)


def page(sheet, top="", bottom=""):
    items = "\n  ".join(f"<li><strong>{item}</strong></li>" for item in ITEMS)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="UTF-8"><title>{TITLE}</title>\n'
        f'<meta name="viewport" content="width=1280"><style>/* a slide */\n{PAGE}\n{sheet}</style></head>\n'
        f'<body>\n<div class="slide">{top}<h1>{TITLE}</h1>{bottom}<ul>\n  {items}\n</ul></div>\n'
        "</body></html>\n"
    )


PAGES = {
    "centred": page(CENTRED + TYPE),
    "cards": page(SLIDE + "}" + CARDS),
    "placed": page(PLACED),
    "a dark panel": page(PANEL, "<header>", "</header>"),
}


@pytest.mark.browser
def test_pages_of_other_hands_score_one(chromium_program):
    verdicts = asyncio.run(judge_pages(chromium_program, [TASK] * len(PAGES), list(PAGES.values())))
    assert {name: (v.reward, v.reason) for name, v in zip(PAGES, verdicts, strict=True)} == dict.fromkeys(
        PAGES, (1.0, "all rules hold")
    )
