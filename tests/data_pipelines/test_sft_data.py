"""Stage ``sft_data`` on real source files: verified, mixed as asked, held apart, the same every time."""

import asyncio
import json
import random
import sysconfig
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_pipelines import sft_data
from data_pipelines.documents import Document, DocumentWriter, python_texts
from data_pipelines.sft_data import shares, switch_off
from environments.catalog import environments
from environments.interface import Verdict, is_heldout, play
from pipeline.errors import UserError
from pipeline.progress import Progress
from pipeline.recipe.data import SftDataSection

MODES = {"interleaved": 0.5, "preserved": 0.25, "off": 0.25}
FAMILIES = {
    "arithmetic/add2": 1.0, "string/reverse": 1.0, "tools/calc": 1.0, "lookup/code": 0.5, "lookup/two": 0.5,
    "dialogue/next": 1.0, "dialogue/total": 1.0, "code/list": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def curated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curate")
    with DocumentWriter(folder / "documents") as writer:
        writer.add(Document("Some prose.", "docs", "a.md", "docs", "MIT", "markdown", "prose"))
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py")):
            text = path.read_text(errors="replace")
            writer.add(Document(text, "stdlib", path.name, path.stem, "PSF-2.0", "python", "code"))
    return folder


def make(curated, out, data_seed=0, **changes):
    values = {"chats": 400, "modes": MODES, "families": FAMILIES, "wrong_turns": 0.5, "off_turns": 0.5}
    out.mkdir()
    context = SimpleNamespace(
        section=SftDataSection(**{**values, **changes}),
        inputs={"curate": curated},
        out=out,
        recipe=SimpleNamespace(data_seed=data_seed),
        progress=Progress(out.with_name(out.name + ".progress"), "sft_data"),
    )
    metrics = sft_data.run(context)
    chats = [json.loads(line) for line in (out / "chats.jsonl").read_text().splitlines()]
    return metrics, chats


@pytest.fixture(scope="module")
def made(curated, tmp_path_factory):
    return make(curated, tmp_path_factory.mktemp("sft") / "out")


def test_counts_are_those_asked_for(made):
    metrics, chats = made
    assert metrics["chats"] == len(chats) == 400
    assert metrics["short"] == metrics["unverified"] == metrics["environment_failed"] == 0
    modes = Counter(chat["mode"] for chat in chats)
    assert all(abs(modes[mode] - 400 * share) <= len(FAMILIES) for mode, share in MODES.items())
    families = Counter(f"{chat['environment']}/{chat['family']}" for chat in chats)
    total = sum(FAMILIES.values())
    assert all(abs(families[name] - 400 * weight / total) <= 3 for name, weight in FAMILIES.items())


def test_chats_are_distinct_and_ask_nothing_that_evaluation_asks(made):
    _, chats = made
    assert len({chat["id"] for chat in chats}) == len(chats)
    assert len({json.dumps([chat["messages"], chat.get("tools")]) for chat in chats}) == len(chats)
    users = [message for chat in chats for message in chat["messages"] if message["role"] == "user"]
    assert len(users) > len(chats)
    assert not any(is_heldout([message]) for message in users)


def test_messages_have_the_agreed_form(made):
    _, chats = made
    for chat in chats:
        assert chat["messages"][0]["role"] == "user" and chat["messages"][-1]["role"] == "assistant"
        assert ("tools" in chat) == (chat["environment"] in ("tools", "lookup"))
        for message in chat["messages"]:
            assert set(message) <= {"role", "content", "reasoning_content", "tool_calls", "train"}
            assert isinstance(message["content"], str)
            if chat["mode"] == "off":
                assert "reasoning_content" not in message
            for call in message.get("tool_calls", ()):
                names = [tool["function"]["name"] for tool in chat["tools"]]
                assert call["type"] == "function" and call["function"]["name"] in names
                assert isinstance(call["function"]["arguments"], dict)


def test_wrong_turns_are_masked_first_turns_that_are_answered(made):
    metrics, chats = made
    masked = [chat for chat in chats if any("train" in message for message in chat["messages"])]
    assert metrics["wrong_turns"] == len(masked) > 40
    for chat in masked:
        wrong, reply = chat["messages"][1:3]
        assert wrong["train"] is False and reply["role"] in ("user", "tool")
        assert not any("train" in message for message in chat["messages"][2:])
        assert chat["environment"] in ("tools", "lookup", "dialogue")


def test_some_later_turns_answer_without_thinking(made):
    metrics, chats = made
    mixed = 0
    for chat in chats:
        trained = [m for m in chat["messages"] if m["role"] == "assistant" and m.get("train", True)]
        thinks = ["reasoning_content" in message for message in trained]
        if chat["mode"] != "off":
            assert thinks[0]
            mixed += not all(thinks)
    assert metrics["off_turns"] == mixed > 20


def test_every_chat_is_rewarded_when_played_again(made, curated):
    """From the file alone: the tasks are drawn again, their dialogues compared with what was written."""
    _, chats = made
    catalog = environments(python_texts(curated / "documents"))
    dialogue = catalog["dialogue"]
    drawn = {}
    for seed in [*range(200), *range(3_333_333, 3_333_533), *range(6_666_666, 6_666_866)]:
        for family in dialogue.families:
            task = dialogue.make_task(family, seed)
            drawn.setdefault((family, task.messages[0]["content"]), []).append(task)
    checked = 0
    for chat in (chat for chat in chats if chat["environment"] == "dialogue"):
        answers = [message for message in chat["messages"] if message["role"] == "assistant"]
        tasks = drawn[chat["family"], chat["messages"][0]["content"]]
        played = [asyncio.run(play(dialogue, task, answers)) for task in tasks]
        assert any(messages == chat["messages"] and verdict.reward > 0 for messages, verdict in played)
        checked += 1
    assert checked > 80


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_chats(curated, tmp_path):
    small = {"chats": 120}
    make(curated, tmp_path / "a", **small)
    make(curated, tmp_path / "b", **small)
    _, other = make(curated, tmp_path / "c", data_seed=1, **small)
    assert (tmp_path / "a/chats.jsonl").read_bytes() == (tmp_path / "b/chats.jsonl").read_bytes()
    assert (tmp_path / "a/funnel.json").read_bytes() == (tmp_path / "b/funnel.json").read_bytes()
    first = {json.loads(line)["id"] for line in (tmp_path / "a/chats.jsonl").read_text().splitlines()}
    assert len(first & {chat["id"] for chat in other}) < 12


def test_a_small_family_runs_out_and_says_so(curated, tmp_path):
    metrics, chats = make(curated, tmp_path / "a", chats=1500, families={"arithmetic/mul1": 1.0})
    assert metrics["short"] == 1500 - len(chats) > 100
    assert len({json.dumps(chat["messages"]) for chat in chats}) == len(chats)


@pytest.mark.parametrize("families, message", [
    ({"arithmetic/add4": 1.0}, "arithmetic/add4 is kept for evaluation"),
    ({"arithmetic/add22": 1.0}, "no family 'add22'"),
    ({"maths/add2": 1.0}, "no environment 'maths'"),
])  # fmt: skip
def test_wrong_families_are_explained(curated, tmp_path, families, message):
    with pytest.raises(UserError, match=message):
        make(curated, tmp_path / "a", chats=10, families=families)


def test_look_ups_in_code_need_code(tmp_path):
    with DocumentWriter(tmp_path / "documents") as writer:
        writer.add(Document("Some prose.", "docs", "a.md", "docs", "MIT", "markdown", "prose"))
    with pytest.raises(UserError, match="lookup/code needs Python documents"):
        make(tmp_path, tmp_path / "a", chats=10, families={"lookup/code": 1.0})


def test_what_an_environment_does_not_reward_is_not_written(curated, tmp_path, monkeypatch):
    async def refuse_sevens(environment, task, answers):
        messages, verdict = await play(environment, task, answers)
        return messages, Verdict(0.0, "a seven") if "7" in task.truth["answers"][0] else verdict

    monkeypatch.setattr(sft_data, "play", refuse_sevens)
    metrics, chats = make(curated, tmp_path / "a", chats=100, families={"arithmetic/add2": 1.0})
    assert metrics["unverified"] > 5
    assert not any("7" in chat["messages"][-1]["content"] for chat in chats)


def test_a_broken_environment_stops_the_stage(curated, tmp_path, monkeypatch):
    async def fail(environment, task, answers):
        return list(task.messages), Verdict(None, "no child process")

    monkeypatch.setattr(sft_data, "play", fail)
    with pytest.raises(UserError, match="could not judge .*no child process.*leave the family out"):
        make(curated, tmp_path / "a", chats=100, families={"code/list": 1.0})


def test_shares_add_up():
    rng = random.Random(4)
    for _ in range(50):
        section = SftDataSection(
            chats=rng.randint(1, 5000),
            modes={"interleaved": rng.random() + 0.1, "off": rng.random()},
            families={name: rng.random() + 0.01 for name in FAMILIES},
        )
        counts = shares(section)
        assert sum(counts.values()) == section.chats
        assert {mode for _, mode in counts} <= {"interleaved", "off"}


def test_weights_must_leave_something():
    with pytest.raises(UserError, match="weights"):
        shares(SftDataSection(chats=5, modes={"off": 0.0}, families={"arithmetic/add2": 1.0}))
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        SftDataSection(chats=5, modes=MODES, families={"arithmetic/add2": -1.0})


def test_switch_off_takes_a_whole_later_turn():
    catalog = environments()
    task = catalog["lookup"].make_task("two", 1)
    answers = catalog["lookup"].oracle(task, "preserved")
    assert switch_off(answers, "preserved", random.Random(1))
    assert ["reasoning_content" in message for message in answers] == [True, True, False, False]
    single = catalog["arithmetic"].oracle(catalog["arithmetic"].make_task("add2", 1), "preserved")
    assert not switch_off(single, "preserved", random.Random(1))
    assert not switch_off(catalog["lookup"].oracle(task, "off"), "off", random.Random(1))
