"""Training stages in two real processes over gloo: the same model as with one; what was ended goes on."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from pipeline import artifacts
from tasks.training.launch import PROCESSES
from tests.tasks.conftest import change
from tests.tasks.test_training_stages import losses, run, same, weights
from tests.waiting import PATIENCE, wait_until


def start(stage: str, recipe, *options: str, processes: str = "2", **further) -> subprocess.Popen:
    command = [sys.executable, "-m", f"tasks.{stage}", "--recipe", str(recipe), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", PROCESSES: processes}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **further)


def end(process: subprocess.Popen) -> tuple[int, list[str]]:
    """Exit status and the lines of standard error, those of progress left out."""
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, [line for line in errors.splitlines() if " step, " not in line]


@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one(workspace):
    change(workspace, sft={"micro_batch": 1}, dsa_warmup={"micro_batch": 1, "validation_rows": 3})
    for stage in ("pretrain", "midtrain", "dsa_warmup", "dsa_adapt", "sft"):
        run(stage, workspace)
    # Chats with unlike numbers of targets and the indexer's loss; nearly all of it frozen; MTP in some steps.
    for stage in ("sft", "dsa_warmup", "pretrain"):
        alone, curves = weights(stage), losses(stage)
        status, lines = end(start(stage, workspace, "--force"))
        assert status == 0 and len(lines) == 1 and lines[0].startswith(f"{stage}: done in"), lines
        assert artifacts.verify(artifacts.artifact_dir("mini", stage))["facts"]["processes"] == 2
        for name, tensor in weights(stage).items():
            torch.testing.assert_close(tensor, alone[name], rtol=1e-3, atol=2e-5, msg=f"{stage} {name}")
        assert len(losses(stage)) == len(curves)
        for (step, *values), (step_alone, *values_alone) in zip(losses(stage), curves, strict=True):
            assert step == step_alone
            assert [float(v or 0) for v in values] == pytest.approx(
                [float(v or 0) for v in values_alone], rel=1e-5
            )
    status, lines = end(start("pretrain", workspace))
    assert (status, lines) == (0, ["pretrain: up to date"])


@pytest.mark.slow
def test_an_ended_run_saves_and_goes_on_to_the_same_bits(workspace):
    change(workspace, pretrain={"tokens": 128 * 100, "save_every_steps": 20, "keep_last": 9})
    assert end(start("pretrain", workspace))[0] == 0
    straight, curves = weights("pretrain"), losses("pretrain")
    (artifacts.artifact_dir("mini", "pretrain") / "record.json").unlink()
    steps = artifacts.run_dir("mini", "pretrain") / "steps"
    shutil.rmtree(steps)
    for blow, step, status in ((signal.SIGTERM, 20, 1), (signal.SIGKILL, 60, -signal.SIGKILL)):
        ended = start("pretrain", workspace)
        wait_until((steps / f"{step:08d}").exists, f"step {step}", pause=0.01)
        ended.send_signal(blow)  # to the process that started the others: they end with it
        ended_with, lines = end(ended)  # standard error stays open until the last has ended
        assert ended_with == status
        assert len(lines) == 1 and "stopped after step" in lines[0], lines
        saved = max(int(path.name) for path in steps.glob("[0-9]*"))
        assert step <= saved < 100
    again = start("pretrain", workspace, stdout=subprocess.PIPE)
    output, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0
    assert output == f"pretrain: going on from step {saved}\n"
    assert same(weights("pretrain"), straight) and losses("pretrain") == curves


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "changes", "sentence"),
    [
        ("two", {}, "GLM5_PROCESSES is 'two'"),
        ("3", {}, "3 processes cannot share the 2 micro-batches of a step of phase train of stage pretrain"),
        ("2", {"optimizer": {"muon_lr": 1e9, "adamw_lr": 1e9}}, "lower the learning rate"),
    ],
)
def test_bad_input_is_one_sentence(workspace, processes, changes, sentence):
    change(workspace, pretrain=changes)
    status, lines = end(start("pretrain", workspace, processes=processes))
    assert status == 1 and len(lines) == 1, lines
    assert lines[0].startswith("error: ") and sentence in lines[0]
