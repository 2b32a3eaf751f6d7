"""Preference pairs are what their kind says; a reward model learns to tell them apart, also after a kill."""

import asyncio
from collections import Counter

import aiohttp
import pytest
import torch

from environments.catalog import environments
from environments.interface import play
from model.chat.parser import parse
from model.chat.tokens import ASSISTANT
from model.hub import load_folder
from pipeline.errors import UserError
from pipeline.recipe.rl import Judge
from pipeline.recipe.rl import RewardModel as Settings
from tasks.rl.rewards import reward_model
from tasks.rl.rewards.combine import Rewards, RewardsConfig
from tasks.rl.rewards.preferences import ANCHOR, KINDS, PairMaker, anchors, counts, split
from tasks.rl.rewards.reward_model import RewardModel, finished, measure, train_reward_model
from tasks.rl.rewards.rules import language, repetition
from tasks.rl.rewards.scoring import Scorer
from tasks.rl.rollout import NOT_THE_FORMAT
from tasks.rl.trajectory import Segment, Trajectory
from tests.waiting import free_port

CATALOG = environments()
FAMILIES = (
    "instructions/use",
    "instructions/json",
    "safety/refuse",
    "safety/answer",
    "tools/calc",
    "dialogue/next",
)
MODES = ("interleaved", "preserved", "off")
TEXT = "The sum of 12 and 30 is 42, so the answer is 42. " * 12


def tasks_of(*families, count=8):
    found = []
    for name in families:
        environment, _, family = name.partition("/")
        for seed in range(count):
            found.append((CATALOG[environment].make_task(family, seed), MODES[seed % 3]))
    return found


@pytest.fixture(scope="module")
def pairs(tokenizer):
    return PairMaker(tokenizer, CATALOG, 1024).pairs(tasks_of(*FAMILIES), 75, seed=1)


def last_turn(tokenizer, ids):
    """The parsed last assistant turn of a chat, with its thinking mode read off the tokens."""
    names = tokenizer.ids_by_name
    start = len(ids) - 1 - ids[::-1].index(names[ASSISTANT])
    return parse(tokenizer, ids[start + 2 :], thinking=ids[start + 1] == names["<think>"])


def test_pairs_are_of_every_kind_and_differ(pairs):
    assert len(pairs) == 75 and set(counts(pairs)) == set(KINDS)
    assert min(counts(pairs).values()) >= 10
    assert all(pair.chosen != pair.rejected for pair in pairs)
    assert len({pair.source for pair in pairs}) > 30


def test_the_chosen_is_right_and_the_rejected_is_wrong_as_its_kind_says(pairs, tokenizer):
    tasks = {task.id: task for task, _ in tasks_of(*FAMILIES)}
    seen = Counter()
    for pair in pairs:
        task = tasks[pair.source]
        better, worse = (last_turn(tokenizer, ids) for ids in (pair.chosen, pair.rejected))
        assert better.valid
        text = worse.message["content"]
        if pair.kind == "format":
            seen["broken"] += not worse.valid
            continue
        assert worse.valid
        if pair.kind == "mixed":
            assert language("abc", text) < 1
        if pair.kind == "repeated":
            seen["loops"] += repetition(text) < 1
            assert len(text) > len(better.message["content"])
        if pair.kind == "truncated":
            assert better.message["content"].startswith(text) and text != better.message["content"]
        if task.environment in ("instructions", "safety") and pair.kind != "mixed":
            verdicts = [
                asyncio.run(play(CATALOG[task.environment], task, [turn.message]))[1].reward
                for turn in (better, worse)
            ]
            assert verdicts == [1.0, 0.0], (pair.kind, text)
    assert seen["loops"] > 0 and seen["broken"] > 0.8 * counts(pairs)["format"]


def test_a_split_keeps_a_source_on_one_side(pairs):
    train, held = split(pairs, 0.25, seed=3)
    assert len(train) + len(held) == len(pairs)
    assert not {pair.source for pair in train} & {pair.source for pair in held}
    assert 0.1 * len(pairs) < len(held) < 0.4 * len(pairs)


def test_anchors_set_people_against_the_policy(checkpoint, tokenizer):
    model = load_folder(checkpoint).eval()
    found = anchors(model, tokenizer, [TEXT, "too short"], 6, 6, seed=2)
    assert 4 <= len(found) <= 6
    for pair in found:
        human = last_turn(tokenizer, pair.chosen).message["content"]
        own = last_turn(tokenizer, pair.rejected).message["content"]
        assert pair.kind == ANCHOR and human in TEXT and own not in TEXT and pair.source in TEXT
        assert "".join((pair.source + human).split()) in "".join(TEXT.split())
    assert anchors(model, tokenizer, ["too short"], 6, 6, seed=2) == []


SETTINGS = Settings(pairs=1, epochs=3, pairs_per_step=8, micro_batch=4, lr=0.02)
LEARNT_FROM = ("instructions/avoid", "instructions/items", "instructions/use", "safety/answer")


@pytest.fixture(scope="module")
def learnt(checkpoint, tokenizer, tmp_path_factory):
    """A folder with a reward model, its figures, pairs to learn from and held-out ones, what was told."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("reward") / "model"
    pairs = PairMaker(tokenizer, CATALOG, 1024).pairs(tasks_of(*LEARNT_FROM, count=40), 110, seed=1)
    train, held = split(pairs, 0.3, seed=3)
    told = []
    figures = train_reward_model(
        load_folder(checkpoint), train, held, SETTINGS, folder, 7, lambda *step: told.append(step)
    )
    return folder, figures, train, held, told


def test_it_learns_to_tell_held_out_pairs_apart(learnt):
    folder, figures, train, held, told = learnt
    steps = round(3 * len(train) / 8)
    assert [step for step, *_ in told] == list(range(1, steps + 1))
    assert told[0][2] == pytest.approx(0.6931, abs=1e-3)  # nothing known: log 2
    # Random weights, a few steps: what can be seen in single tokens is told apart.
    assert figures["accuracy/mixed"] > 0.85 and figures["pairs"] == len(held)
    kinds = [value for name, value in figures.items() if name.startswith("accuracy/")]
    assert len(kinds) == len(KINDS)
    model = RewardModel.load(folder, torch.device("cpu"))
    assert measure(model, train, 64)["accuracy"] > 0.75
    assert measure(model, held, 64)["accuracy"] == pytest.approx(figures["accuracy"])
    better, worse = ([getattr(pair, side) for pair in held] for side in ("chosen", "rejected"))
    rewards = model.rewards(better) + model.rewards(worse)
    assert all(0 < reward < 1 for reward in rewards)
    assert sum(rewards[: len(held)]) > sum(rewards[len(held) :]) and 0.2 < sum(rewards) / len(rewards) < 0.8


def test_a_score_is_the_chats_own(learnt):
    """Whatever chats are read beside it, however long."""
    model = RewardModel.load(learnt[0], torch.device("cpu"))
    chats = [pair.chosen for pair in learnt[3]]
    together = model.rewards(chats)
    assert together == pytest.approx([model.rewards([chat])[0] for chat in chats], abs=1e-5)


def test_a_killed_training_ends_as_if_nothing_had_been(checkpoint, learnt, tmp_path, monkeypatch):
    monkeypatch.setattr(reward_model, "SAVE_EVERY_STEPS", 5)
    _, figures, train, held, _ = learnt

    def die(step, *_):
        if step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_reward_model(load_folder(checkpoint), train, held, SETTINGS, tmp_path, 7, die)
    told = []
    trunk = load_folder(checkpoint)
    again = train_reward_model(trunk, train, held, SETTINGS, tmp_path, 7, lambda *step: told.append(step[0]))
    assert told[0] == 11 and again == pytest.approx(figures, abs=1e-6)
    assert finished(tmp_path) == again and not (tmp_path / "steps").exists()


def test_no_pairs_are_one_sentence(checkpoint, learnt, tmp_path):
    train = learnt[2]
    assert finished(tmp_path) is None
    for some, held in (([], train), (train, [])):
        with pytest.raises(UserError, match="needs preference pairs"):
            train_reward_model(load_folder(checkpoint), some, held, SETTINGS, tmp_path, 7)


def test_a_rate_that_is_too_high_is_one_sentence(checkpoint, learnt, tmp_path):
    wild = SETTINGS.model_copy(update={"lr": 1e30})
    with pytest.raises(UserError, match="lower reward_model.lr"):
        train_reward_model(load_folder(checkpoint), learnt[2], learnt[3], wild, tmp_path, 7)


def test_chats_that_wait_are_read_together(learnt, monkeypatch):
    folder, *_, held, _ = learnt
    chats = [pair.rejected for pair in held] * 3
    passes = []
    rewards = RewardModel.rewards
    monkeypatch.setattr(
        RewardModel, "rewards", lambda self, some: passes.append(len(some)) or rewards(self, some)
    )

    async def run():
        scorer = Scorer(folder)
        waiting = [asyncio.create_task(scorer.reward(chat)) for chat in chats]
        await asyncio.sleep(0)
        waiting[3].cancel()
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = asyncio.run(run())
    assert isinstance(found.pop(3), asyncio.CancelledError)
    assert sum(passes) == len(chats) and len(passes) <= len(chats) / 20
    expected = rewards(RewardModel.load(folder, torch.device("cpu")), chats)
    del expected[3]
    assert found == pytest.approx(expected, abs=1e-5)


def rollout(tokenizer, task, mode, answer, reward, reason="", end="<|user|>"):
    ids = [*tokenizer.encode("a question"), *tokenizer.encode(answer), tokenizer.ids_by_name[end]]
    segment = Segment()
    segment.read(ids[:3])
    segment.sample(ids[3:], [0.0] * len(ids[3:]), [0] * len(ids[3:]))
    messages = [*task.messages, {"role": "assistant", "content": answer}]
    return Trajectory(
        "r", "g", task.id, task.environment, task.family, mode, [segment], reward, reason, messages
    )


def test_a_rollout_gets_its_reward_and_its_parts(learnt, tokenizer):
    task = CATALOG["instructions"].make_task("use", 5)
    settings = dict(weights={"task": 3.0, "model": 1.0, "language": 1.0}, long_from=50, long_until=90)
    deaf = Judge(base_url=f"http://127.0.0.1:{free_port()}/v1", model="m", attempts=1)

    async def run(weights, judge, *trajectories):
        config = RewardsConfig(**{**settings, "weights": weights}, reward_model=learnt[0], judge=judge)
        async with aiohttp.ClientSession() as http:
            rewards = Rewards(config, tokenizer, CATALOG, http)
            for one in trajectories:
                await rewards.judge(task, "off", one)
        return trajectories

    right = task.truth["answers"][0]
    good, odd, broken, failed, cut = asyncio.run(
        run(
            settings["weights"], None,
            rollout(tokenizer, task, "off", right, 1.0),
            rollout(tokenizer, task, "off", right + " имя" * 9, 0.0),
            rollout(tokenizer, task, "off", right, 0.0, f"{NOT_THE_FORMAT}: it is not"),
            rollout(tokenizer, task, "off", right, None, "the sandbox is gone"),
            rollout(tokenizer, task, "off", right, 0.0, end="<think>"),
        )
    )  # fmt: skip
    parts = good.extra
    assert set(parts) == {
        "part/task", "part/format", "part/thinking", "part/language", "part/repetition", "part/length",
        "part/model", "failed/task",
    }  # fmt: skip
    assert good.reward == pytest.approx((3 + parts["part/model"] + 1) / 5)
    share = odd.extra["part/language"]
    assert odd.reward == pytest.approx((odd.extra["part/model"] + share) / 5) and 0 < share < 0.9
    assert broken.reward == cut.reward == 0.0 and "part/model" not in broken.extra
    assert (
        failed.reward is None
        and failed.extra["failed/task"] == 1.0
        and failed.reason == "the sandbox is gone"
    )

    heard = {"task": 1.0, "judge": 1.0}
    (silent,) = asyncio.run(run(heard, deaf, rollout(tokenizer, task, "off", right, 1.0, "all kept")))
    assert silent.reward is None and silent.extra["failed/judge"] == 1.0
    assert silent.reason == "all kept; no word from judge"
    (unheard,) = asyncio.run(
        run({"task": 1.0, "judge": 0.0}, deaf, rollout(tokenizer, task, "off", right, 1.0))
    )
    assert unheard.reward == 1.0


def test_a_stray_seed_changes_the_pairs(tokenizer):
    maker, tasks = PairMaker(tokenizer, CATALOG, 1024), tasks_of("instructions/items")
    first, same, other = (maker.pairs(tasks, 10, seed) for seed in (1, 1, 2))
    assert first == same and first != other
    short = PairMaker(tokenizer, CATALOG, 60).pairs(tasks, 10, 1)
    assert all(max(len(pair.chosen), len(pair.rejected)) <= 60 for pair in short)
