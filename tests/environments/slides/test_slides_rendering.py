"""Levels 2 and 3 in a real Chromium: oracles score 1, planted faults lose, whatever a page tries.

All pages of a kind share one start of the browser; nothing here drives it by another way than the verifier.
"""

import asyncio
import http.server
import threading

import pytest

from environments.interface import play
from environments.slides.browser import measure
from environments.slides.judge import judge_pages
from environments.slides.rendering import read_rendering
from environments.slides.solution import PALETTES, solve
from tests.environments.slides.conftest import FAMILIES, SLIDES, tasks, with_end, with_rule

SEEDS, SALT = 6, " rendered"
GROUND = PALETTES["light"][0]
pytestmark = pytest.mark.browser


def oracle(task):
    return SLIDES.oracle(task, "off")[0]["content"]


def one_task(family, tone="light"):
    return next(task for task in tasks(family, 50, SALT) if task.truth["tone"] == tone)


def styled(rule):
    return lambda task: with_rule(oracle(task), rule)


def with_more(more):
    return lambda task: with_end(oracle(task), more)


def with_inner(task):
    cover = f'<span style="position:absolute;width:1000px;height:60px;background:{GROUND}"></span>'
    return oracle(task).replace("<li>", f"<li>{cover}")


def reordered(task):
    title, *items = task.truth["pieces"]
    return solve(task.family, task.truth["tone"], [title, *reversed(items)])[1]


def dark(task):
    return solve(task.family, "dark", task.truth["pieces"])[1]


def less(task):
    return solve(task.family, task.truth["tone"], task.truth["pieces"][:-1])[1]


FRAME = f"position:absolute;left:200px;top:190px;width:0;height:0;border:200px solid {GROUND}"
STRIPE = f"position:absolute;left:260px;top:0;width:90px;height:700px;background:{GROUND}"
TINY = "body{display:flex;flex-direction:column;justify-content:space-between}h1,li,th,td{font-size:20px}"
COVER = f"position:absolute;left:0;top:100px;width:1280px;height:600px;background:{GROUND}"
ASIDE = "body{align-items:flex-start;padding:64px 0}h1,p{width:180px;font-size:28px}"
ROW = "ul{display:flex;gap:20px}li{width:180px;font-size:24px}"

# Family, page, the most that it may score, and what the verdict must say.
PLANTED = {
    "the colour of the background": ("bullets", styled(f"li{{color:{GROUND}}}"), 0, "colour of its"),
    "nearly that colour": ("bullets", styled("li{color:#efede8}"), 0, "colour of its"),
    "no colour": ("title", styled("p{color:transparent}"), 0, "colour of its"),
    "a font of one pixel": ("bullets", styled("li{font-size:1px}"), 0, "has 1 px"),
    "a font of no pixel": ("bullets", styled("li{font-size:0px}"), 0, "is not on the slide"),
    "beside the slide": ("bullets", styled("ul{position:absolute;left:-2000px}"), 0, "is not on the slide"),
    "below the slide": ("columns", styled("main{margin-top:700px}"), 0, "is not on the slide"),
    "behind a box": ("bullets", with_more(f'<div style="{COVER}"></div>'), 0, "behind another box"),
    "behind a border": ("bullets", with_more(f'<div style="{FRAME}"></div>'), 0, "behind another box"),
    "half behind a box": ("bullets", with_more(f'<div style="{STRIPE}"></div>'), 0, "behind another box"),
    "behind its own part": ("bullets", with_inner, 0, "behind another box"),
    "behind by order": ("bullets", styled("ul{position:relative;z-index:-1}"), 0.5, "outside the rules"),
    "padding fills the slide": ("bullets", styled(TINY), 0.5, "text covers"),
    "flex fills the slide": ("table", styled(TINY + "th,td{padding:40px 0}"), 0.5, "text covers"),
    "a body too low": ("bullets", styled("body{height:600px}"), 0.5, "the body reaches"),
    "a body too wide": ("title", styled("body{width:1400px}"), 0.5, "the body reaches"),
    "too long for the slide": ("bullets", styled("li{margin-bottom:130px}"), 0.5, "beyond the slide"),
    "text cut by a low box": ("bullets", styled("li{height:8px;margin-bottom:76px}"), 0.5, "stands out"),
    "text cut by a narrow box": ("bullets", styled("li{width:200px;white-space:nowrap}"), 0.5, "stands out"),
    "text over text": ("bullets", styled("li{margin-bottom:-25px}"), 0.5, "lines overlap"),
    "no height of lines": ("columns", styled("p{line-height:0.4}"), 0.5, "lines overlap"),
    "faint text": ("bullets", styled("li{color:#b0b0b0}"), 0.5, "has a contrast of"),
    "a small font": ("title", styled("p{font-size:16px}"), 0.25, "a font of 16 px"),
    "another order": ("bullets", reordered, 0.5, "not arranged as asked"),
    "bullets in a row": ("bullets", styled(ROW), 0.5, "not arranged as asked"),
    "columns in a column": ("columns", styled("main{display:block}p,h2{font-size:28px}"), 0.5, "not arr"),
    "all text at one side": ("title", styled(ASIDE), 0.5, "at one side"),
    "all text at the top": ("bullets", styled("body{padding:8px 140px}li,h1{margin:0}"), 0.5, "are empty"),
    "the other tone": ("title", dark, 0.5, "is not light"),
    "a gradient": ("title", styled("body{background:linear-gradient(#fff,#eee)}"), 0.5, "outside the rules"),
    "more text": ("title", with_more("<p>And more</p>"), 0.5, "other text"),
    "a part is missing": ("bullets", less, 0.9, "% of the content"),
}  # fmt: skip


@pytest.fixture(scope="module")
def planted(chromium_program):
    chosen = [one_task(family) for family, *_ in PLANTED.values()]
    pages = [make(task) for task, (_, make, *_) in zip(chosen, PLANTED.values(), strict=True)]
    return dict(zip(PLANTED, asyncio.run(judge_pages(chromium_program, chosen, pages)), strict=True))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_lose(planted, name):
    _, _, most, reason = PLANTED[name]
    verdict = planted[name]
    assert verdict.reward is not None and 0 <= verdict.reward <= most, verdict
    assert reason in verdict.reason, verdict


@pytest.fixture(scope="module")
def solved(chromium_program):
    chosen = [task for family in FAMILIES for task in tasks(family, SEEDS, SALT)]
    verdicts = asyncio.run(judge_pages(chromium_program, chosen, [oracle(task) for task in chosen]))
    return list(zip(chosen, verdicts, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_oracles_score_one(solved, family):
    found = [verdict for task, verdict in solved if task.family == family]
    assert [(verdict.reward, verdict.reason) for verdict in found] == [(1.0, "all rules hold")] * SEEDS


def test_an_episode_scores_the_oracle_one_and_nothing_zero(chromium_program):
    task = one_task("columns", "dark")
    assert asyncio.run(play(SLIDES, task, SLIDES.oracle(task, "interleaved")))[1].reward == 1.0
    for nothing in ([], [{"role": "assistant", "content": ""}], [{"role": "assistant", "content": None}]):
        assert asyncio.run(play(SLIDES, task, nothing))[1].reward == 0.0


def test_the_same_page_measures_the_same(chromium_program):
    pages = [oracle(task) for task in tasks("columns", 3, SALT)]
    once = asyncio.run(measure(chromium_program, pages))
    assert once == asyncio.run(measure(chromium_program, pages)) and len(once) == 3
    assert [entry["body"] for entry in once] == [[0, 0, 1280, 720]] * 3


def test_what_got_past_the_rules_runs_and_fetches_nothing(chromium_program):
    """The second line of defence, without the first: scripts, handlers, frames and fetches of a raw page."""
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        page = (
            f'<!DOCTYPE html><html><head><link rel="stylesheet" href="{url}/sheet"></head>'
            f'<body onload="document.body.innerHTML=1"><p>kept</p><script>document.body.innerHTML=2</script>'
            f'<img src="{url}/image" onerror="document.body.innerHTML=3"><iframe src="{url}/frame"></iframe>'
            f'<div style="width:50px;height:50px;background:url({url}/background);overflow:hidden">'
            "<p>one two three four five six seven</p></div></body></html>"
        )
        [entry] = asyncio.run(measure(chromium_program, [page]))
        server.shutdown()
    rendering = read_rendering(entry)
    unrun = "document.body.innerHTML=2"
    assert [text.text for text in rendering.texts] == ["kept", unrun, "one two three four five six seven"]
    assert asked == []
