"""Training stages in two real processes over gloo: the same model as with one; what was ended goes on."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from pipeline import artifacts
from tasks.training.launch import PROCESSES
from tests.tasks.conftest import change
from tests.tasks.test_training_stages import losses, run, same, weights
from tests.waiting import PATIENCE, wait_until

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def start(
    stage: str, recipe, *options: str, processes="2", launcher=(), also=(), **further
) -> subprocess.Popen:
    command = [sys.executable, *launcher, "-m", f"tasks.{stage}", "--recipe", str(recipe), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", PROCESSES: processes, **dict(also)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **further)


def end(process: subprocess.Popen) -> tuple[int, list[str]]:
    """Exit status, and the lines of standard error without those of progress. It stays open until the last
    process has ended.
    """
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, [line for line in errors.splitlines() if " step, " not in line]


@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one(workspace):
    change(workspace, sft={"micro_batch": 1}, dsa_warmup={"micro_batch": 1, "validation_rows": 3})
    for stage in ("pretrain", "midtrain", "dsa_warmup", "dsa_adapt", "sft"):
        run(stage, workspace)
    # Chats with unlike numbers of targets and the indexer's loss; nearly all of it frozen, and torchrun with
    # one process; MTP in some steps, and more processes than a step has micro-batches.
    for stage, processes, launcher in (
        ("sft", "2", ()), ("dsa_warmup", "2", (*TORCHRUN, "1")), ("pretrain", "3", ()),
    ):  # fmt: skip
        alone, curves = weights(stage), losses(stage)
        ran = start(stage, workspace, "--force", processes=processes, launcher=launcher)
        status, (*said, done) = end(ran)
        assert status == 0 and done.startswith(f"{stage}: done in"), (said, done)
        assert [line.partition(" are used")[0] for line in said] == (
            ["pretrain: 2 of 3 processes"] if processes == "3" else []
        )
        check_same(stage, alone, curves)


def check_same(stage: str, alone: dict[str, torch.Tensor], curves: list[list[str]]) -> None:
    assert artifacts.verify(artifacts.artifact_dir("mini", stage))["facts"]["processes"] == 2
    for name, tensor in weights(stage).items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-3, atol=2e-5, msg=f"{stage} {name}")
    for row, row_alone in zip(losses(stage), curves, strict=True):
        values, values_alone = ([float(value or 0) for value in one] for one in (row, row_alone))
        assert values == pytest.approx(values_alone, rel=1e-5)


@pytest.mark.slow
def test_an_ended_run_goes_on_to_the_same_bits(workspace):
    """Those of a run that ``torchrun`` started and nobody ended."""
    change(workspace, pretrain={"tokens": 128 * 100, "save_every_steps": 20, "keep_last": 9})
    for said in ("pretrain: done in ", "pretrain: up to date"):
        status, lines = end(start("pretrain", workspace, launcher=(*TORCHRUN, "2")))
        assert status == 0 and len([line for line in lines if line.startswith(said)]) == 1, lines
    straight, curves = weights("pretrain"), losses("pretrain")
    (artifacts.artifact_dir("mini", "pretrain") / "record.json").unlink()
    steps = artifacts.run_dir("mini", "pretrain") / "steps"
    shutil.rmtree(steps)
    for blow, step, status, sentence in (
        (signal.SIGTERM, 20, 1, "pretrain: stopped after step "),
        (signal.SIGKILL, 60, -signal.SIGKILL, "pretrain: another process of this run was ended by signal 9;"),
    ):
        ended = start("pretrain", workspace)
        wait_until((steps / f"{step:08d}").exists, f"step {step}", pause=0.01)
        assert {host for pid in (ended.pid, other(ended)) for host in listening(pid)} == {"127.0.0.1"}
        os.kill(ended.pid if blow == signal.SIGTERM else other(ended), blow)
        ended_with, lines = end(ended)
        assert ended_with == status and len(lines) == 1 and lines[0].startswith(sentence), lines
        saved = max(int(path.name) for path in steps.glob("[0-9]*"))
        assert step <= saved < 100
    again = start("pretrain", workspace, stdout=subprocess.PIPE)
    output, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0
    assert output == f"pretrain: going on from step {saved}\n"
    assert same(weights("pretrain"), straight) and losses("pretrain") == curves


def other(process: subprocess.Popen) -> int:
    """Rank 1, which the stage's process started."""
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


def listening(pid: int) -> list[str]:
    """Addresses on which a process waits for connections."""
    return [one.laddr.ip for one in psutil.Process(pid).net_connections("inet") if one.status == "LISTEN"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("surroundings", "changes", "sentence"),
    [
        ({PROCESSES: "two"}, {}, "GLM5_PROCESSES is 'two'"),
        ({"WORLD_SIZE": "2"}, {}, "WORLD_SIZE is '2' and RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set"),
        ({}, {"optimizer": {"muon_lr": 1e9, "adamw_lr": 1e9}}, "lower the learning rate"),
    ],
)
def test_bad_input_is_one_sentence(workspace, surroundings, changes, sentence):
    change(workspace, pretrain=changes)
    status, lines = end(start("pretrain", workspace, also=surroundings))
    assert status == 1 and len(lines) == 1, lines
    assert lines[0].startswith("error: ") and sentence in lines[0]
