"""Exported folders in transformers: the same weights, bit for bit, compressed and dequantised."""

import pytest
from shapes import small_config

from benchmarks.exports import in_transformers
from model.hub import save_folder
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme


@pytest.mark.filterwarnings("ignore")
def test_every_tensor_is_what_the_file_stands_for(tmp_path, make_model):
    pytest.importorskip("compressed_tensors")
    model = make_model(small_config(0, num_layers=2, first_dense_layers=1, index_top_k=9), indexer=True)
    floats, tensors, _ = quantize_model(model, [], Scheme("ssz"))
    save_folder(floats, tmp_path, tensors)
    found = in_transformers(tmp_path)
    experts, dense = 3 * model.config.num_experts, 2 * 5 + 2 * 3
    for way, integers in (("compressed", dense), ("dequantised", 0)):
        assert not any(found[way][f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
        equal = found[way]["equal_bit_for_bit"]
        assert found[way]["different"] == [] and equal["integers"] == integers
        assert equal["dequantised"] == experts + dense - integers
        assert found[way]["mean_logit_difference_from_ours"] < 0.2 * found[way]["mean_logit"]
