"""Level 1 alone, without a browser: what is refused scores 0 before anything is rendered."""

import asyncio
import json

import pytest

from environments.interface import MODES, Task
from environments.slides import browser
from environments.slides.content import compare
from environments.slides.judge import judge_pages, read_document
from environments.slides.markup import read_page
from pipeline.errors import UserError
from tests.environments.slides.conftest import FAMILIES, SLIDES, tasks, with_end, with_rule

NO_BROWSER = "/nonexistent/chromium"  # a refused page must never get there


TASK = tasks("bullets", 1)[0]
GOOD = SLIDES.oracle(TASK, "off")[0]["content"]
ITEMS = "".join(f"<li>{piece['text']}</li>" for piece in TASK.truth["pieces"][1:])
SHOWN = GOOD[GOOD.index("<body>") + 6 : GOOD.index("</body>")]


def styled(rule):
    return with_rule(GOOD, rule)


def with_body(body):
    return GOOD.replace(SHOWN, body)


def with_more(more):
    return with_end(GOOD, more)


REFUSED = {
    "overflow hidden": (styled("body{overflow:hidden}"), "overflow"),
    "overflow with importance": (styled("ul{OVERFLOW-Y : clip !important}"), "overflow-y"),
    "overflow by escape": (styled(r"ul{over\66low:hidden}"), "style"),
    "overflow split by a comment": (styled("ul{over/**/flow:hidden;}"), "does not parse"),
    "scaled": (styled("ul{transform:scale(0.2)}"), "transform"),
    "zoomed": (styled("body{zoom:0.5}"), "zoom"),
    "clipped": (styled("ul{clip-path:inset(0 0 90% 0)}"), "clip-path"),
    "transparent": (styled("li{opacity:0.01}"), "opacity"),
    "invisible": (styled("li{visibility:hidden}"), "visibility"),
    "not displayed": (styled("li{display:none}"), "hides content"),
    "indented away": (styled("li{text-indent:-900px}"), "text-indent"),
    "far away": (styled("ul{position:absolute;left:-99999px}"), "beyond 4000"),
    "endless page": (styled("ul{height:1e9px}"), "exponent"),
    "huge page": (styled("ul{height:999999px}"), "beyond 4000"),
    "generated content": (styled("li::before{color:#fff}"), "selector"),
    "remote style sheet": (styled("@import 'https://example.com/a.css';"), "'@'"),
    "remote background": (styled("body{background:url(https://example.com/a.png)}"), "fetches"),
    "remote image": (with_more('<img src="https://example.com/a.png">'), "element img"),
    "duplicate image": (with_more('<img src="data:image/gif;base64,R0lGOD">' * 2), "element img"),
    "drawn image": (with_more("<svg><rect/></svg>"), "element svg"),
    "script": (with_more("<script>Element.prototype.getBoundingClientRect=0</script>"), "element script"),
    "script after the style": (styled("</style><script>document.title=1</script><style>"), "element script"),
    "event handler": (GOOD.replace("<ul>", '<ul onmouseover="alert(1)">'), "attribute onmouseover"),
    "javascript link": (with_more('<a href="javascript:alert(1)">x</a>'), "element a"),
    "frame": (with_more('<iframe srcdoc="x"></iframe>'), "element iframe"),
    "refresh": (GOOD.replace("<head>", '<head><meta http-equiv="refresh" content="0">'), "http-equiv"),
    "hidden attribute": (GOOD.replace("<ul>", "<ul hidden>"), "attribute hidden"),
    "linked sheet": (GOOD.replace("<head>", '<head><link rel="stylesheet">'), "element link"),
    "comment alone": (with_body(f"<!--{SHOWN}-->"), "nothing of what was asked"),
    "attributes alone": (with_body(f'<div title="{TASK.truth["pieces"][0]["text"]}"></div>'), "nothing of"),
    "head alone": (with_body("").replace("<style>", "<title>The title</title><style>", 1), "nothing of what"),
    "empty slide": (with_body(""), "nothing of what was asked"),
    "wrong element": (GOOD.replace("h1>", "h2>").replace("li>", "div>").replace("ul>", "div>"), "nothing of"),
    "too long": (with_more(" " * 20_000), "longer than 20000"),
    "too many elements": (with_more("<div></div>" * 500), "more than 200 elements"),
    "too deep": (with_more("<div>" * 50 + "</div>" * 50), "24 within each other"),
    "too much text": (with_more(f"<p>{'word ' * 300}</p>"), "more than 800 characters"),
    "not closed": (GOOD.replace("</ul>", ""), "matches no beginning"),
    "cut off": (GOOD[:-60], "is not closed"),
    "text in the list": (GOOD.replace("<ul>", "<ul>text"), "text directly inside ul"),
    "a table in a title": (GOOD.replace("<h1>", "<h1><table></table>"), "stands inside h1"),
    "unknown declaration": (GOOD.replace("<!DOCTYPE html>", "<!DOCTYPE html SYSTEM 'x'>"), "declaration"),
    "binary": (with_more("<p>\x00\x1b</p>"), "control characters"),
    "no document": ("Here is your slide.", "no single HTML document"),
    "two documents": (f"{GOOD}{GOOD}", "not one HTML document"),
    "two fences": (f"```html\n{GOOD}\n```\n```html\n{GOOD}\n```", "no single HTML document"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_pages_score_zero_and_are_never_rendered(name):
    content, reason = REFUSED[name]
    [verdict] = asyncio.run(judge_pages(NO_BROWSER, [TASK], [read_document(content)]))
    assert verdict.reward == 0.0 and reason in verdict.reason
    assert content != GOOD


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_keeps_all_rules_of_level_one(family):
    for task, mode in zip(tasks(family, 60), MODES * 20, strict=True):
        [message] = SLIDES.oracle(task, mode)
        assert bool(message.get("reasoning_content")) == (mode != "off")
        page = read_page(read_document(message["content"]))
        assert compare(page, task.truth) == (1.0, False) and page.style.faults() == []
        assert read_page(page.html).body == page.body  # written as read


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_repeat_are_plain_data_and_say_what_is_wanted(family):
    found = tasks(family, 100)
    assert [SLIDES.make_task(family, task.seed, task.heldout) for task in found] == found
    assert Task.from_record(json.loads(json.dumps(found[0].to_record()))).truth == found[0].truth
    prompts = [task.messages[0]["content"] for task in found]
    assert len(set(prompts)) > 97
    for task, prompt in zip(found, prompts, strict=True):
        assert all(piece["text"] in prompt for piece in task.truth["pieces"])
        assert f"on a {task.truth['tone']} background" in prompt
    assert {task.truth["tone"] for task in found} == {"light", "dark"}
    if family in SLIDES.evaluation_only:
        with pytest.raises(UserError, match="kept for evaluation"):
            SLIDES.make_task(family, 1)


def test_the_share_of_the_content_and_other_text():
    count = len(TASK.truth["pieces"])
    first = ITEMS[: ITEMS.index("</li>") + 5]
    less, more = read_page(GOOD.replace(first, "")), read_page(with_more("<p>More</p>"))
    assert compare(less, TASK.truth) == ((count - 1) / count, False)
    assert compare(more, TASK.truth) == (1.0, True)
    assert compare(read_page(with_more("<div>More</div>")), TASK.truth) == (1.0, True)
    assert compare(read_page(GOOD.replace(first, first * 2)), TASK.truth) == (1.0, True)
    spaced = GOOD.replace("<li>", "<li>\n  <strong>").replace("</li>", "</strong>&#32;</li>")
    assert compare(read_page(spaced), TASK.truth) == (1.0, False)


def test_a_fence_is_taken_off():
    assert read_document(f"Here:\n```html\n{GOOD}\n```\n") == GOOD
    assert read_document(None) is None and read_document([GOOD]) is None


def test_without_a_browser_one_sentence_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is none: apt-get install chromium"):
        SLIDES.episode()
    assert SLIDES.make_task("title", 1) and SLIDES.oracle(TASK, "off")


def test_a_browser_that_fails_gives_no_reward(monkeypatch, tmp_path):
    """None, never 0 and never a pass: it cannot start, it fails, it prints nothing, it never ends."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(browser, "SECONDS", 0.3)
    for program in (NO_BROWSER, "/bin/false", "/bin/true", str(slow)):
        [verdict] = asyncio.run(judge_pages(program, [TASK], [GOOD]))
        assert verdict.reward is None and "browser" in verdict.reason


def test_a_page_that_alone_takes_too_long_scores_zero(monkeypatch, tmp_path):
    """Told apart from a slow browser by a blank page, which this stand-in for one answers at once."""
    program = tmp_path / "browser"
    program.write_text("""#!/bin/sh
for page; do :; done
grep -q "&lt;h1&gt;" "${page#file://}" && exec sleep 60
echo '<pre id="measured">[]</pre>'
""")
    program.chmod(0o755)
    monkeypatch.setattr(browser, "SECONDS", 5.0)
    [verdict] = asyncio.run(judge_pages(str(program), [TASK], [GOOD]))
    assert (verdict.reward, verdict.reason) == (0.0, "the page takes too long to render")
