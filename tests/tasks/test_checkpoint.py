import os
import signal
import subprocess
import sys

import pytest
import torch

from pipeline.errors import UserError
from tasks.training import checkpoint
from tests.waiting import wait_until

CPU = torch.device("cpu")


def state(step):
    return {"step": step, "model": {"w": torch.full((4,), float(step))}}


def test_keeps_the_newest_and_loads_the_last(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, state(step), keep_last=2)
    assert sorted(p.name for p in (tmp_path / "steps").iterdir()) == ["00000002", "00000003"]
    loaded = checkpoint.load_latest(tmp_path, CPU)
    assert loaded["step"] == 3
    assert torch.equal(loaded["model"]["w"], torch.full((4,), 3.0))


@pytest.mark.parametrize("damage", ["truncate", "flip", "no marker", "[]", '{"size": 1}', "{"])
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path, damage, capsys):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, state(step), keep_last=5)
    newest = tmp_path / "steps" / "00000002"
    data = (newest / "state.pt").read_bytes()
    if damage == "truncate":
        (newest / "state.pt").write_bytes(data[:-10])
    elif damage == "flip":
        middle = len(data) // 2
        (newest / "state.pt").write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif damage == "no marker":
        (newest / "done.json").unlink()
    else:
        (newest / "done.json").write_text(damage.replace("1", str(len(data))))
    assert checkpoint.load_latest(tmp_path, CPU)["step"] == 1


def test_damaged_checkpoints_of_later_steps_do_not_push_out_new_ones(tmp_path):
    for step in (2, 3, 4):
        checkpoint.save(tmp_path, step, state(step), keep_last=3)
    for step in (3, 4):
        (tmp_path / f"steps/{step:08d}/state.pt").write_bytes(b"damaged")
    assert checkpoint.load_latest(tmp_path, CPU)["step"] == 2
    checkpoint.save(tmp_path, 2, state(2), keep_last=1)
    assert checkpoint.load_latest(tmp_path, CPU)["step"] == 2
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["00000002"]


def test_nothing_to_load(tmp_path):
    assert checkpoint.load_latest(tmp_path, CPU) is None


def test_too_little_room_is_one_sentence_and_keeps_what_is_there(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, state(1), keep_last=2)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    huge = torch.empty(2 * free, dtype=torch.uint8, device="meta")  # twice what is free, without its memory
    with pytest.raises(UserError, match="free some space"):
        checkpoint.save(tmp_path, 2, {"step": 2, "model": {"w": huge}}, keep_last=2)
    assert checkpoint.load_latest(tmp_path, CPU)["step"] == 1


def test_a_kill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    program = (
        "import sys, torch; from pathlib import Path; from tasks.training import checkpoint\n"
        "step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    state = {'step': step, 'model': {'w': torch.full((500_000,), float(step))}}\n"
        "    checkpoint.save(Path(sys.argv[1]), step, state, 2)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        wait_until(lambda: len(list((tmp_path / "steps").glob("0*"))) >= 2, "two checkpoints", pause=0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    loaded = checkpoint.load_latest(tmp_path, CPU)
    assert torch.equal(loaded["model"]["w"], torch.full((500_000,), float(loaded["step"])))
