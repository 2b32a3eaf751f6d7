"""The viewer page: its data from what training keeps, and the page itself in a headless Chromium."""

import json
import math
import random
import re

import pytest

from model.chat.tokenizer import Tokenizer
from tasks.reporting import trajectories
from tasks.reporting.facts import Facts, StageFacts
from tasks.reporting.page import render, viewer_values
from tasks.reporting.trajectories import viewer
from tasks.rl.batches import Sample
from tasks.rl.group import Group
from tasks.rl.record import TrajectoryLog
from tasks.rl.selection import Selection
from tests.tasks.reporting.stage_of_rl import fill, keep, lines, segment, trajectory

HOSTILE = (
    "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'><!--<script>"
    "\u2028\u202eRTL\u0000\ufeff {{ 7 * 7 }} &lt;b&gt; \U0001f469\u200d\U0001f680 e\u0301 \ud800"
)


def facts_of(folder, name="reasoning_rl") -> Facts:
    stage = StageFacts(name, "what it does", (), {"facts": {}}, {}, {})
    return Facts("tiny", {name: stage}, {name: folder})


def found_in(folder):
    return viewer(facts_of(folder), ["reasoning_rl"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    fill(folder)
    return Tokenizer.load(folder)


@pytest.fixture
def folder(tmp_path, tokenizer):
    fill(tmp_path)
    (tmp_path / "trajectories.jsonl").unlink()
    return tmp_path


def spread(runs):
    return [value for value, count in runs for _ in range(count)]


def test_every_token_of_a_trajectory_comes_back(folder):
    """Random ids, mask, log-probs, versions and advantages, through the file and the data of the page."""
    rng = random.Random(5)
    made = segment([rng.randrange(300) for _ in range(20)], 4)
    made.turns.clear()
    for _ in range(3):
        count = rng.randrange(1, 6)
        made.read([rng.randrange(300) for _ in range(rng.randrange(5))])
        made.sample(
            [rng.randrange(300) for _ in range(count)],
            [-rng.random() * 5 for _ in range(count)],
            [rng.randrange(4) for _ in range(count)],
        )
    advantages = [rng.uniform(-2, 2) for _ in range(len(made))]
    keep(folder, 3, trajectory([made]), advantage=advantages)
    found = found_in(folder)
    (item,) = found.items
    (shown,) = item["segments"]
    assert [found.pieces[place][0] for place in shown["tokens"]] == made.ids
    assert spread(shown["sampled"]) == [int(flag) for flag in made.sampled]
    sampled = [place for place, flag in enumerate(made.sampled) if flag]
    assert shown["logprobs"] == pytest.approx([made.logprobs[place] for place in sampled], abs=1e-4)
    assert spread(shown["versions"]) == [made.versions[place] for place in sampled]
    assert spread(shown["advantages"]) == pytest.approx([advantages[place] for place in sampled], abs=1e-4)
    assert (item["step"], item["version"], item["rewards"], item["known"]) == (3, 3, [1.0], True)


def test_a_teacher_counts_by_how_much_likelier_it_finds_a_token(folder):
    made = segment([1, 2, 3], 2)
    samples = [Sample(made, [0.0, -0.5, -0.125], 1.0, "r")]
    log = TrajectoryLog(folder / "trajectories.jsonl", 9)
    log.keep(0, 0, [Group(0, [trajectory([made])])], Selection(samples, from_teachers=True))
    (item,) = found_in(folder).items
    assert item["segments"][0]["advantages"] == [[-0.25, 1], [0.125, 1]] and item["known"]


def test_pieces_are_text_special_tokens_or_bytes(folder, tokenizer):
    ids = [*tokenizer.encode("one é"), tokenizer.ids_by_name["<|user|>"]]
    keep(folder, 0, trajectory([segment(ids, 1)]))
    pieces = {tuple(piece[1:]) for piece in found_in(folder).pieces}
    assert ("<|user|>", trajectories.SPECIAL) in pieces
    assert {("c3", trajectories.BYTES), ("a9", trajectories.BYTES)} <= pieces
    assert any(kind == trajectories.PLAIN and "one" in text for text, kind in pieces)


def test_a_long_trajectory_loses_its_middle_and_says_so(folder, monkeypatch):
    monkeypatch.setattr(trajectories, "MOST_TOKENS", 40)
    monkeypatch.setattr(trajectories, "MOST_CHARACTERS", 100)
    ids = [n % 300 for n in range(1000)]
    keep(folder, 0, trajectory([segment(ids, 10)], messages=[{"role": "tool", "content": "ab" * 100}]))
    found = found_in(folder)
    shown = found.items[0]["segments"][0]
    assert [found.pieces[place][0] for place in shown["tokens"]] == ids[:20] + ids[-20:]
    assert (shown["whole"], shown["gap"], shown["all_sampled"]) == (1000, 20, 10)
    content = found.items[0]["messages"][0]["content"]
    assert content == "ab" * 25 + "\n[… 100 characters left out …]\n" + "ab" * 25


def test_many_steps_are_thinned_evenly_and_the_page_says_so(folder, monkeypatch):
    monkeypatch.setattr(trajectories, "STAGE_TOKENS", 100)
    for step in range(50):
        keep(folder, step, trajectory([segment([1] * 10, 3)]), trajectory([segment([2] * 10, 3)], family="x"))
    found = found_in(folder)
    assert [item["step"] for item in found.items] == [step for step in (0, 12, 24, 37, 49) for _ in range(2)]
    assert found.stages[0]["notes"] == [
        "5 of its 50 steps are here; trajectories.jsonl of its artifact has all"
    ]


def test_an_old_artifact_is_told_apart(folder):
    keep(folder, 0, trajectory([segment([1, 2, 3], 2)]))
    (row,) = lines(folder)
    for key in ("version", "group_rewards"):
        del row[key]
    for key in ("turns", "advantage"):
        del row["segments"][0][key]
    (folder / "trajectories.jsonl").write_text(json.dumps(row) + "\n")
    (item,) = found_in(folder).items
    assert not item["known"] and item["version"] is None and item["rewards"] == []


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (None, "its artifact has no trajectories.jsonl: run the stage again"),
        ("", "its trajectories.jsonl is empty"),
        ('{"step": 0}\n[]\nnull\n{"st', "4 of 4 lines of trajectories.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_shown_is_said(folder, text, note):
    if text is not None:
        (folder / "trajectories.jsonl").write_text(text)
    found = found_in(folder)
    assert found.items == [] and note in found.stages[0]["notes"][-1]


def test_without_a_tokenizer_tokens_are_numbers(folder):
    keep(folder, 0, trajectory([segment([5, 6], 1)]))
    (folder / "tokenizer.json").unlink()
    found = found_in(folder)
    assert [piece[1] for piece in found.pieces] == ["5", "6"] and "tokenizer.json" in found.stages[0][
        "notes"
    ][0]


def hostile_page(folder, tokenizer) -> str:
    """A page of odd trajectories: text of every kind, none sampled, no reward, infinite log-probs."""
    ids = tokenizer.encode(HOSTILE.replace("\ud800", ""))
    call = {"function": {"name": HOSTILE, "arguments": json.dumps({"a": HOSTILE})}}
    messages = [
        {"role": HOSTILE, "content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]},
        {"role": "tool", "content": None}, {"role": "user", "content": [{"type": "text", "text": HOSTILE}]},
    ]  # fmt: skip
    infinite = segment(ids, 4)
    infinite.logprobs[-1] = -math.inf
    forked = segment(ids, 2, version=3, kind="fork")
    odd = trajectory(
        [infinite, forked], messages=messages, family="odd" + HOSTILE, reason=HOSTILE, task=HOSTILE,
        extra={HOSTILE: 0.5},
    )  # fmt: skip
    failed = trajectory([], messages=[], reward=None, reason="the environment failed", family="failed")
    keep(folder, 0, odd, failed)
    keep(folder, 1, trajectory([segment(ids, 5)], reward=0.0, reason="wrong"))
    return render("trajectories.html.jinja", viewer_values(found_in(folder), "tiny"))


def test_the_page_is_one_file_that_no_text_can_break(folder, tokenizer):
    page = hostile_page(folder, tokenizer)
    assert len(re.findall(r"</?script", page)) == 4 and page.isascii() == ("‹" not in page)
    assert not re.search(r"""(src|href)=["'](?!report.html)""", page.replace("src=x", ""))
    assert "url(" not in page and "@import" not in page and "default-src 'none'" in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert HOSTILE in data["items"][0]["messages"][0]["content"]
    assert data["items"][0]["segments"][0]["logprobs"][-1] is None


@pytest.fixture
def page(folder, tokenizer, request):
    chromium = request.getfixturevalue("chromium")
    file = folder / "trajectories.html"
    file.write_text(hostile_page(folder, tokenizer), encoding="utf-8")
    problems = []
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda sent: None if sent.url.startswith(file.as_uri()) else problems.append(sent.url))
    page.goto(file.as_uri())
    yield page
    page.close()
    assert problems == []


@pytest.mark.browser
def test_hostile_texts_are_shown_as_text(page):
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(page.locator("#where")).to_have_text("1 of 3")
    assert page.evaluate("window.owned") is None and page.locator("img").count() == 0
    content = page.locator(".message .content").first
    expect(content).to_contain_text("<img src=x onerror='window.owned = 2'>")
    expect(content).to_contain_text("⟨U+2028⟩⟨U+202E⟩RTL⟨U+0000⟩⟨U+FEFF⟩ {{ 7 * 7 }} &lt;b&gt;")
    expect(content).to_contain_text("⟨U+D800⟩")
    expect(page.locator(".call").first).to_contain_text("</script>")
    assert page.locator(".segment").count() == 2
    assert page.locator(".tokens").first.locator(".sampled").count() == 4
    expect(page.locator(".join.fork")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is wider than a phone"


@pytest.mark.browser
def test_keys_filters_and_addresses(page):
    expect = pytest.importorskip("playwright.sync_api").expect
    page.keyboard.press("ArrowRight")
    expect(page.locator("#where")).to_have_text("2 of 3")
    expect(page.locator(".figures")).to_contain_text("the environment failed")
    expect(page.locator("#shown")).to_contain_text("Nothing was sampled.")
    page.keyboard.press("j")
    expect(page.locator("#where")).to_have_text("3 of 3")
    expect(page.locator("#next")).to_be_disabled()
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("#where")).to_have_text("2 of 3")
    page.locator("#reward").select_option("bad")
    expect(page.locator("#where")).to_have_text("1 of 1")
    expect(page.locator("h2")).to_have_text("tools/calc")
    page.locator("#step").select_option("0")
    expect(page.locator("#shown")).to_have_text("No trajectory fits these choices.")
    page.locator("#reward").select_option("")
    page.locator("#step").select_option("")
    page.evaluate("location.hash = 'reasoning_rl/2/group-0%2F0'")
    expect(page.locator("#where")).to_have_text("3 of 3")
    page.locator("[data-colour=version]").click()
    page.locator(".tokens .sampled").nth(1).click()
    expect(page.locator("#token")).to_contain_text("log-prob −0.25 (77.9 %) · version 0 · advantage +0.5")
    page.keyboard.press("Escape")
    expect(page.locator("#token")).to_be_hidden()
