"""Teachers: their log-probabilities are those of the training forward, and a student comes nearer to them."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from environments.catalog import environments
from model.chat.renderer import render
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import MODES
from model.hub import load_folder, save_folder
from model.inference.engine import Engine
from model.loss import language_loss
from pipeline.errors import UserError
from pipeline.recipe.rl import DistillSection
from tasks.rl.batches import Sample, pack
from tasks.rl.group import Group, Spool
from tasks.rl.objective import freeze_indexer
from tasks.rl.teachers import Teachers, by_teacher
from tasks.rl.trajectory import Segment, Trajectory
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
STEPS, PROMPTS = 8, 24
SECTION = {
    "steps": STEPS, "optimizer": {"muon_lr": 0.003, "adamw_lr": 0.02, "weight_decay": 0.0},
    "families": {"graph/reach": 2.0, "graph/follow": 1.0}, "modes": {"off": 1.0},
    "teachers": {"sft": ["graph/reach"], "reasoning_rl": ["graph/follow"]}, "sequence_length": 160,
    "micro_batch": 4, "save_every_steps": 2,
    "rollouts": {"prompts_per_step": PROMPTS, "max_new_tokens": 8, "engines": 1},
}  # fmt: skip
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from pipeline.progress import Progress
from pipeline.recipe.rl import DistillSection
from pipeline.stage import Context
from pipeline.tracking import Metrics
from tasks import distill

torch.set_num_threads(1)
settings = json.loads(Path(sys.argv[1]).read_text())
scratch = Path(settings["scratch"])
inputs = {name: Path(folder) for name, folder in settings["inputs"].items()}
out = scratch / "out"
out.mkdir(exist_ok=True)
context = Context("distill", None, DistillSection(**settings["section"]), 5, inputs, {}, out, scratch, "",
    Progress(scratch, "distill"), Metrics(scratch, "r", "distill", "0" * 64, {}, {}))
distill.run(context)
"""


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def segment(rng, longest=60):
    made = Segment()
    for _ in range(rng.randrange(1, 4)):
        made.read([rng.randrange(5, 400) for _ in range(rng.randrange(1, longest // 2))])
        count = rng.randrange(1, longest // 4)
        made.sample([rng.randrange(5, 400) for _ in range(count)], [-1.0] * count, [0] * count)
    return made


def other(checkpoint):
    """A teacher with weights of its own."""
    model = load_folder(checkpoint)
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.roll(1, 0))
    return model


def test_a_teachers_values_are_those_of_the_training_forward(checkpoint):
    """Packed and padded as the trainer reads them, with a sparse selection that leaves tokens out."""
    rng = random.Random(7)
    models = {"sft": load_folder(checkpoint), "general_rl": other(checkpoint)}
    engines = {name: Engine(model.eval()) for name, model in models.items()}
    teachers = Teachers(engines, {"a/a": "sft", "b/b": "general_rl"}, CPU)
    samples = [Sample(segment(rng), 0.0, 1.0, f"s{n}", "a/a" if n % 3 else "b/b") for n in range(12)]
    judged, values = teachers.judged(samples)
    assert max(len(sample.segment) for sample in samples) > models["sft"].config.index_top_k
    for family, name in (("a/a", "sft"), ("b/b", "general_rl")):
        own = [sample for sample in judged if sample.family == family]
        worst, expected = 0.0, []
        freeze_indexer(models[name])
        for batch in pack(own, 128, 2, 0):
            hidden_BTD = models[name](batch.tokens_BT, start_BT=batch.start_BT, attention="sparse").hidden_BTD
            there = -language_loss(models[name], hidden_BTD, batch.target_BT)
            counted = batch.weight_BT != 0
            worst = max(worst, (there - batch.advantage_BT)[counted].abs().max().item())
            expected += (-1.0 - there)[counted].tolist()
        assert worst < 1e-5
        assert values[f"distill/kl/{name}"] == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_every_rollout_is_judged_whatever_its_reward(checkpoint):
    section = DistillSection(**SECTION)
    teachers = Teachers(
        {name: Engine(load_folder(checkpoint).eval()) for name in section.teachers}, section.teacher_of, CPU
    )
    rng = random.Random(1)

    def trajectory(number, family, reward):
        made = [segment(rng, 40)]
        return Trajectory(f"t{number}", "g", "t", "graph", family, "off", made, reward, "")

    rewards = [0.0, 0.0, 1.0, None]
    groups = [
        Group(n, [trajectory(n, "reach" if n % 2 else "follow", reward)]) for n, reward in enumerate(rewards)
    ]
    found = by_teacher(section, teachers)(groups, 0)
    assert [sample.name for sample in found.samples] == ["t0", "t1", "t2"]
    assert found.counts == {"kept": 3, "groups_kept": 3, "failed": 1, "groups_dropped": 1}
    assert all(len(sample.advantage) == len(sample.segment) for sample in found.samples)
    assert set(found.values) == {"distill/kl/sft", "distill/kl/reasoning_rl"}


def leaning(guesser, folder, nats):
    """The guesser, but it says yes more often: by so many nats."""
    folder.mkdir()
    model, tokenizer = load_folder(guesser), Tokenizer.load(guesser)
    yes, end = tokenizer.encode("yes")[0], tokenizer.ids_by_name["</think>"]
    with torch.no_grad():
        embedding = torch.nn.functional.normalize(model.embed.weight[end], dim=-1)
        model.head.weight[yes] += nats / model.config.hidden_size**0.5 * embedding
    save_folder(model, folder)
    for path in guesser.iterdir():
        if not (folder / path.name).exists():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@torch.no_grad()
def kl(student, teacher, family):
    """KL(student || teacher) in nats of the first token of an answer, over held-out prompts."""
    tokenizer, catalog = Tokenizer.load(teacher), environments()
    models, total = [load_folder(folder).eval() for folder in (student, teacher)], 0.0
    for seed in range(10):
        task = catalog["graph"].make_task(family, seed, heldout=True)
        ids = torch.tensor([render(tokenizer, list(task.messages), None, MODES["off"], True).ids])
        ours, theirs = (
            torch.log_softmax(model.head(model(ids, attention="sparse").hidden_BTD[:, -1]).double(), -1)
            for model in models
        )
        total += (ours.exp() * (ours - theirs)).sum().item()
    return total / 10


def start(settings, scratch):
    path = scratch / "settings.json"
    path.write_text(json.dumps(settings))
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "GLM5_MLFLOW": "off"}
    with open(scratch / "log.txt", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)], stdout=log, stderr=log, env=environment
        )


def test_a_student_comes_nearer_to_its_teachers_also_when_it_is_killed(guesser, tmp_path):
    tasks = tmp_path / "rl_tasks"
    tasks.mkdir()
    catalog = environments()
    with open(tasks / "tasks.jsonl", "w") as file:
        for family in ("reach", "follow"):
            for seed in range(30):
                file.write(json.dumps(catalog["graph"].make_task(family, seed).to_record()) + "\n")
    folders = {
        "general_rl": guesser, "sft": leaning(guesser, tmp_path / "sft", 2.0),
        "reasoning_rl": leaning(guesser, tmp_path / "reasoning_rl", 3.0),
    }  # fmt: skip
    inputs = {name: str(folder) for name, folder in {**folders, "rl_tasks": tasks}.items()}
    scratch = tmp_path / "run"
    scratch.mkdir()
    settings = {"section": SECTION, "scratch": str(scratch), "inputs": inputs}
    process = start(settings, scratch)
    marker = scratch / "steps/00000002/done.json"
    wait_until(lambda: marker.exists() or process.poll() is not None, "the first checkpoint")
    process.kill()
    process.wait()
    assert start(settings, scratch).wait(PATIENCE) == 0, (scratch / "log.txt").read_text()

    rows = [json.loads(line) for line in (scratch / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["rollouts/kept"] == PROMPTS and row["mismatch_kl"] < 1e-6 for row in rows)
    done = torch.load(scratch / f"steps/{STEPS:08d}/state.pt", weights_only=True)["done"]
    assert done == list(range(STEPS * PROMPTS)) and not Spool(scratch / "spool").indices()
    lines = (scratch / "out/trajectories.jsonl").read_text().splitlines()
    seen = [(line["step"], line["id"]) for line in map(json.loads, lines)]
    assert len(set(seen)) == len(seen) and {step for step, _ in seen} == set(range(STEPS))
    for name, family in (("sft", "reach"), ("reasoning_rl", "follow")):
        before, after = (kl(folder, folders[name], family) for folder in (guesser, scratch / "out"))
        assert before > 0.3 and after < before / 2
        assert any(f"distill/kl/{name}" in row for row in rows)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"teachers": {"sft": ["graph/reach"]}}, "graph/follow of families has none: name it under one"),
        ({"teachers": {"sft": ["graph/reach", "graph/follow", "code/fix"]}}, "names code/fix, which has no"),
        (
            {"teachers": {"sft": ["graph/reach"], "general_rl": ["graph/reach", "graph/follow"]}},
            "graph/reach is of both sft and general_rl: leave it to one",
        ),
        ({"teachers": {"pretrain": ["graph/reach", "graph/follow"]}}, "should be 'sft', 'reasoning_rl'"),
        ({"teachers": {}}, "at least 1 item"),
    ],
)  # fmt: skip
def test_teachers_of_a_recipe_that_cannot_be(changes, sentence):
    with pytest.raises(ValidationError, match=sentence):
        DistillSection(**{**SECTION, **changes})


def test_a_teacher_with_other_tokens_is_refused(guesser, tmp_path):
    folder = leaning(guesser, tmp_path / "other", 0.0)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("</think>", "</thought>"))
    with pytest.raises(UserError, match="the teacher sft .* has another tokenizer than the student"):
        Teachers.load({"sft": folder}, {}, guesser, CPU)
