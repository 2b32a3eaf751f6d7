"""The ablation's rows, what is said of them, and what it refuses."""

import pytest
import torch
from shapes import small_config

from benchmarks import quantization
from model.hub import save_folder
from model.quantization.outliers import Outliers, inject
from model.quantization.quality import Row
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme
from pipeline.errors import UserError
from tasks.quantization.comparison import Comparison


def test_every_variant_has_a_row_and_outliers_show(make_model, monkeypatch):
    monkeypatch.setattr(quantization, "METHODS_OF_8", ("minmax",))
    schemes = list(quantization.variants(("minmax", "flex_awq_ssz"), 4))
    model = make_model(small_config(3, num_layers=2, first_dense_layers=0), indexer=True).eval()
    inject(model, Outliers(factor=32.0))
    draw = torch.randint(model.config.vocab_size, (6, 24))
    comparison = Comparison({"text": [Row(row) for row in draw[:4].tolist()]}, [draw[0, :6].tolist()], 4)
    rows = [
        {"model": "outliers", **row} for row in quantization.ablate(model, [draw[4:]], comparison, schemes)
    ]
    names = [(row["name"], row.get("method"), row.get("rotation")) for row in rows]
    assert names[0] == ("float", None, None) and len(set(names)) == len(names) == 1 + 2 + 4
    by_name = dict(zip(names, rows, strict=True))
    # A rotation spreads outliers of a norm, so that less is lost.
    plain, rotated = by_name["W4A8", "minmax", False], by_name["W4A8", "minmax", True]
    assert plain["kurtosis_rotated"] > 2 * rotated["kurtosis_rotated"] and plain["kl"] > rotated["kl"] > 0
    assert rows[0]["kurtosis_rotated"] == pytest.approx(plain["kurtosis_rotated"], rel=0.2)

    found = quantization.claims(rows, "outliers")
    final = by_name["W4A8", "flex_awq_ssz", True]
    assert found["perplexity_text_change"]["w4a8_percent"] == 100 * final["perplexity_text_change"]
    assert ("minmax" in found["no_worse_by_kl"]) == (plain["kl"] <= final["kl"])
    shown = quantization.shown(final, "perplexity_text_change")
    assert shown.startswith(f"{100 * final['perplexity_text_change']:+.2f} % [")
    without = [row for row in rows if row.get("method") != "flex_awq_ssz"]
    assert quantization.claims(without, "outliers") == {}  # a share of the methods, for another run


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run(options)``: the command, in a workspace with nothing in it but the names of the data it reads."""
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    for stage, file in quantization.NEEDED.items():
        folder = tmp_path / "artifacts/tiny" / stage
        folder.mkdir(parents=True)
        (folder / file).touch()
    monkeypatch.setattr(quantization, "RESULT", tmp_path / "result")

    def run(*options: str) -> None:
        monkeypatch.setattr("sys.argv", ["quantization", "--checkpoint", str(tmp_path), *options])
        quantization.main()

    return run


@pytest.mark.parametrize(
    "option, value, sentence",
    [
        ("--length", "0", "--length 0 is out of bounds: it should be greater than 1"),
        ("--chats", "-3", "--chats -3 is out of bounds: it should be greater than or equal to 0"),
        ("--documents", "-1", "--documents -1 is out of bounds"),
        ("--rows", "0", "--rows 0 is out of bounds: it should be greater than 0"),
        ("--prompts", "0", "--prompts 0 is out of bounds"),
        ("--share", "nan", "--share nan is no share of the features"),
        ("--outliers", "0", "--outliers 0.0 is no factor"),
        ("--device", "nowhere", "--device nowhere is no device"),
        ("--out", "not/there", "--out: the folder not is not there"),
        ("--out", "/dev/null/x", "--out: the folder /dev/null is not there"),
    ],
)
def test_bad_options_get_one_sentence_before_anything_is_read(run, option, value, sentence):
    with pytest.raises(UserError) as error:
        run(option, value)
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


def test_data_that_is_missing_is_named(run, tmp_path):
    (tmp_path / "artifacts/tiny/eval_sets/heldout.parquet").unlink()
    with pytest.raises(UserError, match="heldout.parquet is missing: run stage eval_sets"):
        run()


def test_a_quantised_checkpoint_gets_one_sentence(run, tmp_path, make_model):
    model = make_model(small_config(3, num_layers=2, first_dense_layers=0), indexer=True).eval()
    floats, tensors, _ = quantize_model(model, [], Scheme("minmax"))
    save_folder(floats, tmp_path, tensors)
    with pytest.raises(UserError, match="is quantised: give --checkpoint the float one"):
        run()


def test_tokens_that_all_choose_the_same_experts_get_one_sentence(make_model):
    model = make_model(small_config(3, num_layers=2, first_dense_layers=0), indexer=True).eval()
    for router in model.routers():
        router.bias.zero_()
        router.bias[: router.top_k] = 100.0
    draw = torch.randint(model.config.vocab_size, (6, 24))
    comparison = Comparison({"text": [Row(row) for row in draw[:4].tolist()]}, [draw[0, :6].tolist()], 4)
    rows = quantization.ablate(model, [draw[4:]], comparison, [("W8A8", Scheme("minmax"))])
    with pytest.raises(UserError, match="cannot be quantised: all calibration tokens chose the same"):
        list(rows)
