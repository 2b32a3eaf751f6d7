"""The training stages over a real, small workspace; what is killed runs as a child."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file

from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.stage import execute
from tasks.training.schedule import schedule_factor
from tests.tasks.conftest import change
from tests.waiting import PATIENCE, wait_until


def run(stage: str, recipe) -> None:
    """Run a stage in this process; what it does on SIGTERM is undone after it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        execute(stage, import_module(f"tasks.{stage}").run, str(recipe))
    finally:
        signal.signal(signal.SIGTERM, before)


def weights(stage: str) -> dict[str, torch.Tensor]:
    return load_file(artifacts.artifact_dir("mini", stage) / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


STEPS = 150  # far more than pass before the blow


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(workspace, capsys):
    change(workspace, pretrain={"tokens": 128 * STEPS, "save_every_steps": 5})
    run("pretrain", workspace)
    straight, curves = weights("pretrain"), losses("pretrain")
    for blow in (signal.SIGKILL, signal.SIGTERM):
        forced_and_ended_by(blow, workspace)
        assert same(weights("pretrain"), straight), "the finished artifact must survive its successor's kill"
        (artifacts.artifact_dir("mini", "pretrain") / "record.json").unlink()
        capsys.readouterr()
        run("pretrain", workspace)
        again = re.search(r"going on from step (\d+)", capsys.readouterr().out)
        assert again and 10 <= int(again[1]) < STEPS, blow
        assert same(weights("pretrain"), straight), blow
        assert losses("pretrain") == curves, blow


def forced_and_ended_by(blow: signal.Signals, recipe) -> None:
    """Run stage ``pretrain`` anew as a child, and end it once it has saved step 10."""
    steps = artifacts.run_dir("mini", "pretrain") / "steps"
    shutil.rmtree(steps)  # of the run before
    command = [sys.executable, "-m", "tasks.pretrain", "--recipe", str(recipe), "--force"]
    forced = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    wait_until(lambda: any(int(path.name) >= 10 for path in steps.glob("[0-9]*")), "step 10", pause=0.01)
    forced.send_signal(blow)
    assert forced.wait(timeout=PATIENCE) != 0


def losses(stage: str) -> list[list[str]]:
    return [[row["step"], row["train/loss"], row["val/loss"]] for row in read_curves(stage)]


def test_the_chain_of_stages(workspace, capsys):
    for stage in ("pretrain", "midtrain", "dsa_warmup", "dsa_adapt", "sft"):
        run(stage, workspace)
        folder = artifacts.artifact_dir("mini", stage)
        record = artifacts.verify(folder)
        assert record["facts"]["steps"] > 0
        names = {path.name for path in folder.iterdir()}
        expected = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "curves.csv"}
        assert expected <= names
    run("sft", workspace)
    assert "sft: up to date" in capsys.readouterr().err
    before, after = weights("midtrain"), weights("dsa_warmup")
    moved = [name for name in before if "indexer" not in name and not torch.equal(before[name], after[name])]
    assert moved == [], "warm-up may train nothing but the indexer"
    kl = [float(row["val/loss"]) for row in read_curves("dsa_warmup") if row["val/loss"]]
    assert kl[-1] < kl[0]
    assert not same({n: t for n, t in weights("dsa_adapt").items() if "indexer" not in n},
                    {n: t for n, t in after.items() if "indexer" not in n})  # fmt: skip


def read_curves(stage: str) -> list[dict]:
    with open(artifacts.artifact_dir("mini", stage) / "curves.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pretrain": {"global_batch_tokens": 100}}, "no multiple of micro_batch x sequence_length"),
        ({"pretrain": {"optimizer": {"muon_lr": 1e9, "adamw_lr": 1e9}}}, "lower the learning rate"),
        (
            {
                "model": {"vocab_size": 500},
                "tokenizer": {"vocab_size": 500},
            },  # and the old tokenizer is there
            "has 400 tokens and model.vocab_size is 500",
        ),
    ],
)
def test_bad_input_is_one_sentence(workspace, changes, sentence):
    change(workspace, **changes)
    with pytest.raises(UserError, match=sentence):
        run("pretrain", workspace)
    assert not artifacts.artifact_dir("mini", "pretrain").exists()


def test_a_checkpoint_of_another_shape_is_refused(workspace):
    run("pretrain", workspace)
    folder = artifacts.artifact_dir("mini", "pretrain")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 48}))
    record = artifacts.read_record(folder)
    path = folder / "config.json"
    record["files"]["config.json"] = [path.stat().st_size, artifacts.hash_file(path)]
    (folder / "record.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="cannot load the checkpoint"):
        run("midtrain", workspace)


def test_schedules():
    class Section:
        class schedule:
            shape, warmup_steps, final = "cosine", 4, 0.1

    factors = [schedule_factor(Section, step, 24) for step in range(24)]
    assert factors[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert abs(factors[14] - 0.55) < 1e-12  # half way
    assert all(a > b for a, b in zip(factors[4:], factors[5:], strict=False))
    assert 0.1 < factors[-1] < 0.11
    Section.schedule.shape = "linear"
    assert abs(schedule_factor(Section, 14, 24) - 0.55) < 1e-12
    Section.schedule.shape = "constant"
    assert schedule_factor(Section, 23, 24) == 1.0
