"""The chat page in a headless Chromium on a real server: keys, folding, tools, stopping, failures, phones."""

import re
import signal

import httpx
import pytest

from tests.waiting import PATIENCE, free_port, wait_until

from reciting_model import CONTENT, CONTEXT, REASONING, make_checkpoint  # isort: skip
from small_tokenizer import train_tokenizer  # isort: skip

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
MILLISECONDS = 1000 * PATIENCE
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(chromium):
    expect.set_options(timeout=MILLISECONDS)
    return chromium


@pytest.fixture
def open_page(browser):
    """``open_page(url)``: the page, which must neither fail nor fetch anything from elsewhere."""
    problems, opened = [], []

    def visit(url: str, width: int = 1000, **options):
        page = browser.new_page(viewport={"width": width, "height": 720}, **options)
        opened.append(page)
        page.set_default_timeout(MILLISECONDS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request", lambda request: None if request.url.startswith(url) else problems.append(request.url)
        )
        page.goto(url)
        return page

    yield visit
    for page in opened:
        page.close()
    assert problems == []


@pytest.fixture
def page(served, open_page):
    page = open_page(served.url)
    page.locator("#model").select_option("speaker")
    return page


def say(page, text: str) -> None:
    """Write a message and send it, once the answer before it has ended: until then the page takes none."""
    expect(page.locator("#send")).to_be_visible()
    page.locator("#text").fill(text)
    page.keyboard.press("Enter")


def test_an_answer_with_folded_thinking_and_figures(page):
    expect(page.locator("#examples button").first).to_be_visible()
    say(page, "hello <b>you</b>")
    expect(page.locator(".content")).to_have_text(CONTENT)
    expect(page.locator(".user p")).to_have_text("hello <b>you</b>")  # text, not markup
    expect(page.locator(".meta")).to_contain_text(re.compile(r"\d+ tokens\d+ tokens/s"))
    expect(page.locator("#count")).to_contain_text("of 2048 tokens used")
    thought = page.locator(".thought div")
    expect(thought).to_be_hidden()
    page.locator(".thought summary").click()
    expect(thought).to_have_text(REASONING)
    expect(page.locator("#empty")).to_be_hidden()
    page.locator("#fresh").click()
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator(".answer")).to_have_count(0)


def test_the_thinking_switch(page):
    page.locator("label.switch").click()
    say(page, "hello")
    expect(page.locator(".content")).to_have_text(CONTENT)
    expect(page.locator(".thought")).to_have_count(0)


def test_shift_enter_makes_a_line_and_enter_sends(page):
    page.locator("#text").fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator(".user")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".user p")).to_have_text("one\ntwo")
    expect(page.locator("#text")).to_have_value("")


def test_escape_stops_the_answer_and_the_server(start_server, open_page, tmp_path):
    train_tokenizer(tmp_path, tags_are_special=False)
    make_checkpoint(tmp_path, "babbler", max_positions=16 * CONTEXT)  # an answer of a minute and more
    served = start_server(checkpoints={"babbler": tmp_path})
    page = open_page(served.url)
    page.locator("#settings-button").click()
    page.keyboard.press("Escape")  # closes the settings
    expect(page.locator("#settings")).to_be_hidden()
    say(page, "hello")
    expect(page.locator("#stop")).to_be_visible()
    expect(page.locator(".thought, .content").first).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(page.locator(".meta")).to_contain_text("stopped")
    expect(page.locator("#send")).to_be_visible()
    wait_until(lambda: served.metric("glm5_sequences_inside") == 0, "the end of a stopped answer")


def test_a_tool_that_a_person_answers(page):
    page.locator("#model").select_option("caller")  # loaded with the next message
    page.locator("#settings-button").click()
    page.locator("#tools input[value=search]").check()
    page.keyboard.press("Escape")
    say(page, "find the ferry")
    expect(page.locator(".call .asked")).to_contain_text("query = ferry")
    page.locator(".result input").fill("at noon")
    page.keyboard.press("Enter")
    expect(page.locator(".result code").first).to_have_text("at noon")
    expect(page.locator(".call")).to_have_count(2)  # this model knows nothing else
    page.keyboard.press("Escape")
    expect(page.locator(".meta")).to_contain_text("tokens")
    assert httpx.get(page.url + "health", timeout=PATIENCE).json()["model"] == "caller"


def test_try_again(page):
    say(page, "hello")
    page.get_by_text("Try again").click()
    expect(page.locator(".answer")).to_have_count(1)
    expect(page.locator(".content")).to_have_text(CONTENT)
    say(page, "more")
    expect(page.locator(".answer .content")).to_have_count(2)
    expect(page.get_by_text("Try again")).to_have_count(1)  # of the last answer alone


def test_a_dialogue_that_is_too_long_is_named(page):
    say(page, "word " * 3000)
    expect(page.locator(".fault")).to_contain_text("tokens is the most")
    expect(page.locator("#send")).to_be_visible()


def test_a_server_that_dies_and_returns(start_server, open_page):
    served = start_server("--port", str(free_port()))
    page = open_page(served.url)
    say(page, "hello")
    expect(page.locator(".content")).to_have_text(CONTENT)
    expect(page.locator("#send")).to_be_visible()
    served.process.send_signal(signal.SIGKILL)
    served.process.wait()
    say(page, "again")
    fault = page.locator(".fault", has_text="does not answer")
    expect(fault).to_be_visible()
    expect(page.locator("#send")).to_be_visible()
    expect(fault).to_have_count(1)  # asking for the models failed as well, and is not told again
    start_server("--port", served.url.rpartition(":")[2])
    fault.get_by_role("button").click()
    expect(page.locator(".content").last).to_have_text(CONTENT)
    expect(fault).to_have_count(0)


def test_the_api_key_is_asked_for(start_server, open_page):
    page = open_page(start_server(GLM5_API_KEY="secret").url)
    page.locator("#key").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-dialog")).to_be_visible()
    page.locator("#key").fill("secret")
    page.keyboard.press("Enter")
    expect(page.locator("#model option")).to_have_count(2)
    say(page, "hello")
    expect(page.locator(".content")).to_have_text(CONTENT)


@pytest.mark.parametrize("width", [320, 390, 1400])
def test_nothing_sticks_out_of_a_narrow_screen(served, open_page, width):
    page = open_page(served.url, width=width)
    say(page, "long" * 200)
    expect(page.locator(".meta")).to_contain_text("tokens")
    page.locator("#settings-button").click()
    boxes = [
        page.locator(selector).bounding_box()
        for selector in ("header", "#fresh", "#composer", "#send", "#settings", ".user p", ".answer")
    ]
    for box in boxes:
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, boxes


def test_dark_and_light(served, open_page):
    grounds = {}
    for scheme in ("dark", "light"):
        page = open_page(served.url, color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        box = page.locator("body").screenshot()
        grounds[scheme] = box
    assert grounds["dark"] != grounds["light"]
    page.locator("#settings-button").click()
    page.get_by_label("dark", exact=True).check()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
