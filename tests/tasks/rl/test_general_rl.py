"""The stage with a real engine and worker, a reward model that it trains, a judge that fails now and then."""

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from environments.catalog import environments
from model.hub import load_folder
from pipeline.progress import Progress
from pipeline.recipe.rl import GeneralRlSection
from pipeline.stage import Context
from pipeline.tracking import Metrics
from tasks import general_rl
from tests.chat_server import said, serving

ROOT = Path(__file__).parents[3]
FAILS_ONE_IN = 7


@pytest.fixture(scope="module")
def grader():
    """Grades "yes" better than "no"; of some answers it says nothing of use."""
    with serving() as server:

        def reply(body):
            answer = json.loads(body["messages"][1]["content"])[-1]["content"]
            verdict = f"verdict: {9 if answer == 'yes' else 2}"
            return said(content="who knows" if len(server.asked) % FAILS_ONE_IN == 0 else verdict)

        server.reply = reply
        yield server


def inputs(guesser, folder):
    tasks, documents = folder / "rl_tasks", folder / "curate" / "documents"
    tasks.mkdir()
    documents.mkdir(parents=True)
    catalog = environments()
    records = [catalog["graph"].make_task("reach", seed).to_record() for seed in range(20)]
    (tasks / "tasks.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    texts = {
        "text": ["People write like this, and not otherwise. " * 20, "x = 1\n" * 90],
        "kind": ["prose", "code"],
    }
    pq.write_table(pa.table(texts), documents / "00000.parquet")
    return {"agentic_rl": guesser, "rl_tasks": tasks, "curate": folder / "curate"}


def section(grader):
    return GeneralRlSection(
        steps=2, optimizer={"muon_lr": 0.001, "adamw_lr": 0.001}, families={"graph/reach": 1.0},
        modes={"off": 1.0}, sequence_length=128, micro_batch=2, long_from=3, long_until=8,
        rollouts={"prompts_per_step": 3, "rollouts_per_prompt": 6, "max_new_tokens": 8, "engines": 1},
        rewards={"task": 1.0, "model": 0.5, "judge": 0.5, "repetition": 0.1, "length": 0.0},
        reward_model={"pairs": 30, "anchors": 6, "epochs": 1, "lr": 0.01, "anchor_tokens": 5},
        judge={"base_url": grader.address, "model": "grader", "per_minute": 60_000, "pause": 0},
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran(guesser, grader, tmp_path_factory):
    """The folder of a run, its context and final values."""
    folder = tmp_path_factory.mktemp("general")
    scratch, out = folder / "run", folder / "out"
    scratch.mkdir()
    out.mkdir()
    context = Context(
        "general_rl", None, section(grader), 5, inputs(guesser, folder), {}, out, scratch, "",
        Progress(scratch, "general_rl"), Metrics(scratch, "r", "general_rl", "0" * 64, {}, {}),
    )  # fmt: skip
    threads, path, on_sigterm = (
        torch.get_num_threads(),
        os.environ.get("PYTHONPATH"),
        signal.getsignal(signal.SIGTERM),
    )
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), path or ""])
    try:
        values = general_rl.run(context)
    finally:
        torch.set_num_threads(threads)
        signal.signal(signal.SIGTERM, on_sigterm)
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
    return folder, context, values


def test_every_part_is_logged_by_itself(ran):
    folder, _, values = ran
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["part/task"] < 1 and 0 < row["part/model"] < 1
        assert 0.2 < row["part/judge"] < 0.9
        assert row["part/repetition"] == row["part/format"] == 1.0
        # A part of weight 0 has no say and is logged; the reward is the mean of the others.
        assert "part/length" in row and "part/tools" not in row
    assert 0 < sum(row["failed/judge"] for row in rows) < 1 and rows[0]["failed/task"] == 0
    assert sum(row.get("rollouts/failed", 0) for row in rows) >= 1
    assert values["part/judge"] == rows[-1]["part/judge"]


def test_a_trajectory_shows_how_its_reward_came_about(ran):
    folder, context, _ = ran
    lines = [json.loads(line) for line in (folder / "out/trajectories.jsonl").read_text().splitlines()]
    weights = context.section.rewards
    for line in lines:
        parts = {
            name.removeprefix("part/"): v for name, v in line["extra"].items() if name.startswith("part/")
        }
        if line["extra"]["failed/judge"]:
            assert line["reward"] is None and line["reason"].endswith("no word from judge")
        else:
            heard = {name: weight for name, weight in weights.items() if name in parts}
            expected = sum(parts[name] * weight for name, weight in heard.items()) / sum(heard.values())
            assert line["reward"] == pytest.approx(expected)
            assert parts["judge"] == (0.9 if line["messages"][-1]["content"] == "yes" else 0.2)


def test_the_reward_model_is_measured_and_the_policy_written(ran, guesser):
    folder, context, _ = ran
    figures = json.loads((folder / "out/reward_model.json").read_text())
    assert figures["accuracy"] == context.facts["reward_model/accuracy"] and figures["pairs"] >= 4
    assert context.facts["reward_model/trained_pairs/anchor"] >= 1
    before, after = load_folder(guesser), load_folder(folder / "out")
    assert not torch.equal(before.head.weight, after.head.weight)


def test_the_judge_saw_conversations(ran, grader):
    _, asked = grader.asked[0]
    shown = json.loads(asked["messages"][1]["content"])
    assert asked["model"] == "grader" and [message["role"] for message in shown] == ["user", "assistant"]
    assert shown[-1]["content"] in ("yes", "no")
