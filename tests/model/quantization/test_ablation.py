"""The ablation's rows and what is said of them."""

import pytest
import torch
from shapes import small_config

from benchmarks import quantization
from model.quantization.outliers import Outliers, inject
from model.quantization.quality import Row
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
