import json

import numpy as np
import pytest

from model.loss import IGNORE
from pipeline.errors import UserError
from tasks.training.batches import PackedBatches, StreamBatches, rows_of_step
from tasks.training.setup import split_validation


def test_rows_cover_every_epoch_once_in_another_order():
    steps = [rows_of_step(10, 4, seed=3, step=step) for step in range(5)]
    rows = np.concatenate(steps)
    assert sorted(rows[:10]) == list(range(10)) and sorted(rows[10:]) == list(range(10))
    assert list(rows[:10]) != list(rows[10:])
    assert np.array_equal(steps[3], rows_of_step(10, 4, seed=3, step=3))
    assert not np.array_equal(rows[:10], np.concatenate([rows_of_step(10, 4, 4, s) for s in range(3)])[:10])


def write_stream(folder, count):
    np.arange(count, dtype="<u2").tofile(folder / "tokens.bin")
    (folder / "meta.json").write_text(json.dumps({"dtype": "<u2"}))


def test_stream_targets_are_the_next_token(tmp_path):
    write_stream(tmp_path, 41)
    batches = StreamBatches(tmp_path, 8)
    assert batches.rows == 5
    batch = batches.take(np.array([0, 4]))
    assert batch.tokens_BT.tolist() == [list(range(8)), list(range(32, 40))]
    assert batch.target_BT.tolist() == [list(range(1, 9)), list(range(33, 41))]
    assert batch.start_BT is None


def test_stream_that_is_too_short(tmp_path):
    write_stream(tmp_path, 8)
    with pytest.raises(UserError, match="fewer than one window of 8"):
        StreamBatches(tmp_path, 8)


def test_packed_documents_do_not_predict_each_other():
    tokens = np.array([[5, 6, 7, 8, 9, 0]], dtype=np.uint16)
    starts = np.array([[0, 0, 0, 3, 3, 5]], dtype=np.int32)
    batch = PackedBatches(tokens, starts, "x").take(np.array([0]))
    assert batch.target_BT.tolist() == [[6, 7, IGNORE, 9, IGNORE, IGNORE]]


def test_packed_loss_mask_marks_targets():
    tokens = np.array([[5, 6, 7, 8]], dtype=np.uint16)
    starts = np.zeros((1, 4), dtype=np.int32)
    trained = np.array([[True, False, True, False]])
    batch = PackedBatches(tokens, starts, "x", trained).take(np.array([0]))
    assert batch.target_BT.tolist() == [[IGNORE, 7, IGNORE, IGNORE]]


def test_missing_context_length_names_those_that_exist(tmp_path):
    np.save(tmp_path / "seq_512.tokens.npy", np.zeros((1, 512), dtype=np.uint16))
    with pytest.raises(UserError, match="no sequences of length 1024 .it has 512."):
        PackedBatches.read(tmp_path, 1024)


def test_rows_kept_for_validation_are_spread_and_never_trained():
    tokens = np.arange(40, dtype=np.uint16).reshape(10, 4)
    packed = PackedBatches(tokens, np.zeros((10, 4), dtype=np.int32), "x")
    train, validation = split_validation(packed, 3, micro_batch=2)
    held = [batch.tokens_BT[:, 0].tolist() for batch in validation]
    assert held == [[0, 12], [24]]
    rest = train.take(np.arange(train.rows))
    assert rest.tokens_BT[:, 0].tolist() == [4, 8, 16, 20, 28, 32, 36]
    assert rest.names[2] == "x row 4"
    with pytest.raises(UserError, match="no more than the 7 kept"):
        split_validation(train, 7, micro_batch=2)
