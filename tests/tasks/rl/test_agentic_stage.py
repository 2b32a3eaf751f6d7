"""The stage with a real engine and worker: asynchronous, shares held, the optimizer new after a push."""

import asyncio
import itertools
import json
import os
import signal

import pytest
import torch

from environments.catalog import environments
from environments.search.environment import Search
from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from model.inference.engine import Engine
from pipeline.errors import UserError
from pipeline.progress import Progress
from pipeline.recipe.rl import AgenticRlSection
from pipeline.stage import Context
from pipeline.tracking import Metrics
from tasks import agentic_rl
from tasks.rl.catalog import CatalogConfig, open_catalog
from tasks.rl.engines.client import Sampling
from tasks.rl.engines.local import LocalEngine
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.rollout import Assignment, Limits, roll_out
from tasks.rl.router import Router
from tests.environments.harbor.conftest import write_task  # noqa: F401 - a fixture
from tests.environments.search.conftest import world  # noqa: F401 - a fixture
from tests.sandboxes import backend_or_skip
from tests.tasks.rl.conftest import ROOT, one_that_says

SECTION = {
    "steps": 4, "push_every_steps": 2, "save_every_steps": 1, "keep_last": 4,
    "optimizer": {"muon_lr": 0.001, "adamw_lr": 0.001}, "families": {"graph/reach": 3.0, "lookup/fact": 1.0},
    "modes": {"off": 1.0}, "sequence_length": 256, "micro_batch": 2,
    "rollouts": {"prompts_per_step": 4, "rollouts_per_prompt": 6, "max_new_tokens": 8, "engines": 1,
                 "ahead": 2, "max_staleness": 1},
}  # fmt: skip


@pytest.fixture
def context(guesser, tmp_path, monkeypatch):
    """``context(section)``: what the stage is given."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLM5_MLFLOW", "off")
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    torch.set_num_threads(1)
    inputs = {name: tmp_path / name for name in ("rl_tasks", "agent_tasks", "search_tasks", "out", "run")}
    for folder in inputs.values():
        folder.mkdir()
    (inputs["agent_tasks"] / "tasks").mkdir()
    catalog = environments()
    tasks = [catalog["graph"].make_task("reach", seed) for seed in range(20)]
    tasks += [catalog["lookup"].make_task("fact", seed) for seed in range(5)]
    lines = "".join(json.dumps(task.to_record()) + "\n" for task in tasks)
    (inputs["rl_tasks"] / "tasks.jsonl").write_text(lines)
    (inputs["search_tasks"] / "tasks.jsonl").write_text("")

    def make(section) -> Context:
        out, scratch = inputs["out"], inputs["run"]
        return Context(
            "agentic_rl", None, AgenticRlSection(**section), 5, {**inputs, "reasoning_rl": guesser}, {}, out,
            scratch, "", Progress(scratch, "agentic_rl"),
            Metrics(scratch, "r", "agentic_rl", "0" * 64, {}, {}),
        )  # fmt: skip

    yield make
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


def test_a_run(context, guesser):
    made = context(SECTION)
    values = agentic_rl.run(made)
    rows = [json.loads(line) for line in (made.scratch / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["off_policy/age_max"] <= 1 and "rollouts/stale" not in row for row in rows)
    assert 0 <= rows[-1]["service/graph/reach/share"] <= 1 and rows[-1]["service/graph/reach/given_up"] == 0
    assert_counted(
        rows, [json.loads(line) for line in (made.scratch / "steps.jsonl").read_text().splitlines()]
    )
    learnt = [row for row in rows if "train/loss" in row]
    assert learnt and all("off_policy/masked" in row and row["mismatch_kl"] < 0.01 for row in learnt)
    assert 0 < values["reward/mean"] < 1

    states = {
        step: torch.load(made.scratch / f"steps/{step:08d}/state.pt", weights_only=True)
        for step in range(1, 5)
    }
    kept = {
        step: any(part["state"] for part in state["optimizer"].values()) for step, state in states.items()
    }
    assert kept == {1: True, 2: False, 3: True, 4: False}
    assert {step: state["version"] for step, state in states.items()} == {1: 0, 2: 1, 3: 1, 4: 2}
    assert states[4]["done"] == list(range(16))

    assert made.facts["rollouts/graph/reach/groups"] == 12 and made.facts["rollouts/lookup/fact/groups"] == 4
    assert made.facts["rollouts/graph/reach/failed"] == 0
    before, after = load_folder(guesser).state_dict(), load_folder(made.out).state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert (made.out / "trajectories.jsonl").read_text()
    figures = json.loads((made.scratch / "rollouts.json").read_text())
    assert figures["sessions"] == 0 and set(figures["engines"]) == {"engine-0"}
    assert figures["services"]["graph/reach"]["share"] == figures["services"]["graph/reach"]["share_wanted"]


def assert_counted(rows, times):
    """What was sampled, and what was learnt from: of a group all or nothing."""
    left_out, before = 0, {}
    for row, line in zip(rows, times, strict=True):
        tokens = [rollout[3] for rollout in line["rollouts"]]
        groups = [sum(tokens[at : at + 6]) for at in range(0, 24, 6)]
        grown = {n: row[n] - before.get(n, 0) for n in ("train/tokens", "train/learnt_tokens")}
        kept = itertools.combinations(groups, row.get("rollouts/groups_kept", 0))
        assert grown["train/tokens"] == sum(groups) and grown["train/learnt_tokens"] in map(sum, kept)
        left_out, before = left_out + row.get("rollouts/groups_dead", 0), row
    assert left_out >= 4  # the look-ups, of which none is ever right


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"harbor": 1.0}, "agentic_rl.harbor has weight, but agent_tasks made no training task"),
        ({"search": 1.0}, "agentic_rl.search has weight, but search_tasks made no task"),
        ({"families": {"tools/calc": 1.0}}, "has no task of tools/calc"),
    ],
)
def test_weight_without_tasks_is_refused(context, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        agentic_rl.tasks_of(context({**SECTION, **changes}))


def test_sandboxes_are_opened_for_what_runs_in_them(context):
    made = agentic_rl.catalog_of(context(SECTION), {})
    assert made == CatalogConfig()
    made = agentic_rl.catalog_of(
        context({**SECTION, "families": {"python_tool/digits": 1.0, "graph/reach": 0}}), {}
    )
    assert made == CatalogConfig(sandbox=True)
    made = agentic_rl.catalog_of(context({**SECTION, "harbor": 0.5, "search": 0.5, "backend": "docker"}), {})
    assert made.sandbox and made.backend == "docker"
    assert (made.agent_tasks.name, made.corpus.name) == ("tasks", "corpus")


@pytest.mark.parametrize("python", [False, True])
def test_questions_with_a_python_tool_run_in_sandboxes(context, world, python):  # noqa: F811
    async def start():
        raise AssertionError("no program is run here")

    search = Search(world().corpus(), start_sandbox=start if python else None)
    stage = context({**SECTION, "families": {"graph/reach": 1.0}, "search": 1.0, "sandboxes": 3})
    tasks = [search.make_task("links2", seed) for seed in range(3)]
    lines = "".join(json.dumps(task.to_record(), ensure_ascii=False) + "\n" for task in tasks)
    (stage.inputs["search_tasks"] / "tasks.jsonl").write_text(lines)
    found = agentic_rl.tasks_of(stage)
    assert agentic_rl.catalog_of(stage, found).sandbox == python
    services = {service.name: service for service in agentic_rl._services(stage, found)}
    bound = services["search"].at_once == 3
    assert bound == python and services["graph/reach"].at_once != 3


def test_an_agent_at_a_terminal_task(write_task, tmp_path, monkeypatch):  # noqa: F811
    """The worker's catalog opens a sandbox, the policy submits at once, and the task's tests judge that."""
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    backend_or_skip(tmp_path / "runs/sandbox")
    root = write_task().parent
    environment = open_catalog(CatalogConfig(agent_tasks=root, sandbox=True, backend="bubblewrap"))["harbor"]
    turn = ["</think>", "<tool_call>", "submit", "</tool_call>", "<|observation|>"]
    (tmp_path / "policy").mkdir()
    folder = one_that_says(tmp_path / "policy", [turn])
    [task] = environment.tasks()

    async def run():
        tokenizer = Tokenizer.load(folder)
        model = load_folder(folder).eval()
        model.config = model.config.model_copy(update={"max_positions": 1024})
        engine, router = LocalEngine(Engine(model), tokenizer.stop_ids), Router()
        router.join("local")
        gateway = Gateway(tokenizer, router, {"local": engine}, Sampling(16, temperature=0.0))
        try:
            return await roll_out(Assignment("a", "g", task, "off", 1), environment, gateway, Limits())
        finally:
            await engine.close()

    found = asyncio.run(run())
    assert found.reward == 0.0 and found.environment == "harbor", found.reason
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]
    assert found.messages[1]["tool_calls"][0]["function"]["name"] == "submit"
