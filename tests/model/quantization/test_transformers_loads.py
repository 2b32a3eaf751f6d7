"""Exported folders in transformers: the same weights, bit for bit, compressed and dequantised."""

import pytest
from shapes import small_config

from benchmarks.exports import in_transformers
from model.hub import save_folder
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme


def exported(folder, make_model, bits, dimensions=(2, 3)):
    """A model's export with experts of ``bits``, weights of ``dimensions`` quantised (experts are stacked in
    three); the model's shape and what transformers makes of the folder.
    """
    pytest.importorskip("compressed_tensors")
    model = make_model(small_config(0, num_layers=2, first_dense_layers=1, index_top_k=9), indexer=True)
    floats, tensors, _ = quantize_model(model, [], Scheme("ssz", expert_bits=bits))
    save_folder(floats, folder, {n: t for n, t in tensors.items() if t.values.dim() in dimensions})
    return model.config, in_transformers(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [4, 8])
def test_every_tensor_is_what_the_file_stands_for(tmp_path, make_model, bits):
    config, found = exported(tmp_path, make_model, bits)
    experts, dense = 3 * config.num_experts, 2 * 5 + 2 * 3
    for way, integers in (("compressed", dense), ("dequantised", 0)):
        assert found[way]["loaded"], found[way]
        assert not any(found[way][f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
        equal = found[way]["equal_bit_for_bit"]
        assert found[way]["different"] == [] and equal["integers"] == integers
        assert equal["dequantised"] == experts + dense - integers
        assert found[way]["mean_logit_difference_from_ours"] < 0.2 * found[way]["mean_logit"]


@pytest.mark.filterwarnings("ignore")
def test_float_experts_beside_8_bits_load_too(tmp_path, make_model):
    config, found = exported(tmp_path, make_model, 8, dimensions=(2,))
    for way in ("compressed", "dequantised"):
        assert found[way]["loaded"] and found[way]["different"] == [], found[way]
        assert found[way]["equal_bit_for_bit"]["float"] > 3 * config.num_experts
