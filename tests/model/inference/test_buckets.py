"""Weights in buckets: what is read is what was written, or it is refused with the bucket's name."""

import json
import time
from types import SimpleNamespace

import pytest
import torch

from model.inference import buckets
from model.inference.buckets import MANIFEST, read_buckets, write_buckets

BUCKET = 4096


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(11)
    shapes = {"a": (30, 30), "b": (7,), "c": (40, 40), "d": (2, 3, 4), "e": (500,), "f": ()}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**made, "g": made["a"].to(torch.bfloat16).T}  # not contiguous, of another type


def test_what_is_read_is_what_was_written(state, tmp_path):
    checksum = write_buckets(state, tmp_path, 7, BUCKET)
    rows = json.loads((tmp_path / MANIFEST).read_text())["buckets"]
    assert [row["tensors"] for row in rows] == [["a", "b"], ["c"], ["d", "e", "f", "g"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(row["file"] for row in rows), MANIFEST]
    found = read_buckets(tmp_path, 7, checksum, time.monotonic() + 60)
    assert list(found) == list(state) and len(found) == len(state)
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_every_damage_is_found(state, tmp_path):
    checksum = write_buckets(state, tmp_path, 7, BUCKET)
    for file in sorted(tmp_path.glob("*.safetensors")):
        whole = file.read_bytes()
        for place in (0, 40, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ValueError, match=f"bucket {file.name} is damaged .*: send it again"):
                read_buckets(tmp_path, 7, checksum)
        file.write_bytes(whole[:-1])
        with pytest.raises(ValueError, match=f"bucket {file.name} is damaged"):
            read_buckets(tmp_path, 7, checksum)
        file.unlink()
        with pytest.raises(OSError, match=file.name):
            read_buckets(tmp_path, 7, checksum)
        file.write_bytes(whole)
    manifest = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(manifest.replace('"a"', '"A"'))
    with pytest.raises(ValueError, match="the checksum of .*buckets.json is .*: send them again"):
        read_buckets(tmp_path, 7, checksum)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(ValueError, match="lists no buckets"):
        read_buckets(tmp_path, 7, None)


def test_another_version_and_a_late_one_are_refused(state, tmp_path):
    checksum = write_buckets(state, tmp_path, 7, BUCKET)
    with pytest.raises(ValueError, match="holds version 7, not 8"):
        read_buckets(tmp_path, 8, checksum)
    with pytest.raises(ValueError, match="come too late: at their deadline 0 of 3 buckets were read"):
        read_buckets(tmp_path, 7, checksum, time.monotonic() - 1)


def test_a_deadline_that_passes_between_two_buckets(state, tmp_path, monkeypatch):
    checksum = write_buckets(state, tmp_path, 7, BUCKET)
    monkeypatch.setattr(buckets, "AT_ONCE", 1)
    monkeypatch.setattr(buckets, "time", SimpleNamespace(monotonic=iter([0.0, 0.0, 2.0]).__next__))
    with pytest.raises(ValueError, match="at their deadline [012] of 3 buckets were read"):
        read_buckets(tmp_path, 7, checksum, 1.0)


def test_a_bucket_that_cannot_be_written_leaves_no_list(state, tmp_path):
    (tmp_path / "00001.safetensors").mkdir()
    with pytest.raises(IsADirectoryError, match="00001.safetensors"):
        write_buckets(state, tmp_path, 7, BUCKET)
    assert not (tmp_path / MANIFEST).exists()
