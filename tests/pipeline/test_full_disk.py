"""A disk that fills up, on a small tmpfs and with the writers that the stages really use."""

import json
import os

import numpy as np
import pytest
import torch

from data_pipelines.documents import Document, DocumentWriter
from data_pipelines.tokenizer import new_tokenizer, train
from model.config import preset
from model.hub import save_folder
from model.transformer import Transformer
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.stage import execute

SIZE = 4 << 20


@pytest.fixture
def disk(mount_disk, monkeypatch):
    """A disk of 4 MiB on which stage ``collect`` has finished once."""
    folder = mount_disk(str(SIZE))
    monkeypatch.setenv("GLM5_ROOT", str(folder))
    execute("collect", small, "smoke")
    return folder


def small(context):
    (context.out / "documents.txt").write_text("x")
    return {}


def fill(context, but: int) -> None:
    """Leave ``but`` bytes free."""
    free = os.statvfs(context.out).f_bavail * os.statvfs(context.out).f_frsize
    with open(context.scratch / "filler", "wb") as file:
        file.write(bytes(free - but))


def write_bytes(context):
    (context.out / "large").write_bytes(bytes(2 * SIZE))


def write_array(context):
    np.save(context.out / "large.npy", np.zeros(SIZE))


def write_torch(context):
    with open(context.out / "state.pt", "wb") as file:
        torch.save({"a": torch.zeros(SIZE)}, file)


def write_checkpoint(context):
    save_folder(Transformer(preset("tiny"), seed=0), context.out)


def write_tokenizer(context):
    fill(context, 8192)
    tokenizer = new_tokenizer()
    train(tokenizer, iter([" ".join(f"{chr(97 + i % 26)}{i:x}" for i in range(9000))]), 600)
    tokenizer.save(str(context.out / "tokenizer.json"))


def write_documents(context):
    noise = np.random.default_rng(3)
    with DocumentWriter(context.out / "documents") as writer:
        for number in range(200):
            text = noise.bytes(100_000).hex()
            writer.add(Document(text, "s", f"{number}", "p", "l", "en", "prose"))


def write_metrics_of_a_step(context):
    fill(context, 4096)
    for step in range(1000):
        context.metrics.log(step, {"train/loss": 1.0})


def leave_no_room_for_metrics_json(context):
    (context.out / "documents.txt").write_text("y")
    fill(context, 0)


def leave_no_room_for_the_record(context):
    context.facts["large"] = "x" * 9000
    (context.out / "documents.txt").write_text("y")
    fill(context, 8192)


@pytest.mark.parametrize(
    "write",
    [
        write_bytes, write_array, write_torch, write_checkpoint, write_tokenizer, write_documents,
        write_metrics_of_a_step, leave_no_room_for_metrics_json, leave_no_room_for_the_record,
    ],
)  # fmt: skip
def test_one_sentence_and_nothing_finished_is_lost(disk, write):
    before = artifacts.read_record(disk / "artifacts/smoke/collect")

    def run(context):
        write(context)
        return {}

    with pytest.raises(
        UserError, match="the disk is full while stage collect writes .*free some space"
    ) as caught:
        execute("collect", run, "smoke", force=True)
    assert "\n" not in str(caught.value)
    assert artifacts.verify(disk / "artifacts/smoke/collect") == before
    assert sorted(path.name for path in (disk / "artifacts/smoke").iterdir()) == ["collect"]


def test_a_fault_of_the_code_stays_one(disk):
    with pytest.raises(ZeroDivisionError):
        execute("collect", lambda context: {"x": 1 / 0}, "smoke", force=True)


def test_a_full_disk_before_the_start_keeps_the_checkpoints(disk):
    scratch = disk / "runs/smoke/collect"

    def stops(context):
        (context.scratch / "step.pt").write_text("7")
        fill(context, 0)
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        execute("collect", stops, "smoke", force=True)
    with pytest.raises(UserError, match="the disk is full while stage collect writes"):
        (disk / "artifacts/smoke/collect/documents.txt").unlink()  # so that it has to run again
        execute("collect", small_with_log, "smoke")
    (scratch / "filler").unlink()
    execute("collect", goes_on, "smoke")
    assert json.loads((disk / "artifacts/smoke/collect/from.json").read_text()) == 7


def small_with_log(context):
    (context.out / "documents.txt").write_bytes(bytes(1 << 20))
    return {}


def goes_on(context):
    (context.out / "from.json").write_text((context.scratch / "step.pt").read_text())
    return {}
