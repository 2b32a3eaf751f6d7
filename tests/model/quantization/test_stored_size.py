"""Sizes on disk: computed ones are those of real files, and GLM-5's is at most a third of bfloat16."""

import pytest
import torch
from safetensors.torch import load_file
from shapes import small_config

from model.config import preset
from model.hub import save_folder
from model.quantization.rounding import QuantizedTensor, minmax_scale, quantize_weight
from model.quantization.scheme import Scheme
from model.quantization.size import stored_bytes


def test_glm5_packed_is_at_most_a_third_of_bfloat16():
    config = preset("glm5")
    plain, packed = stored_bytes(config), stored_bytes(config, Scheme())
    counts = config.parameter_counts()
    biases = 2 * (config.num_layers - config.first_dense_layers + 1) * config.num_experts  # float32
    assert plain == 2 * (counts["total"] + counts["mtp"] + biases)
    assert 0.25 < packed / plain <= 0.33
    assert packed < stored_bytes(config, Scheme(expert_bits=8)) < 0.55 * plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_computed_size_is_that_of_a_real_file(tmp_path, make_model, dtype):
    config, scheme = small_config(6), Scheme(rotation=False)
    model = make_model(config, indexer=True, dtype=dtype)
    weights = {}
    for name, weight in model.state_dict().items():
        if bits := scheme.bits(name):
            scale = minmax_scale(weight, bits)
            weights[name] = QuantizedTensor(quantize_weight(weight, scale, bits), scale, bits)
    for router in model.routers():
        router.bias = router.bias.float()
    for quantized in ({}, weights):
        save_folder(model, tmp_path, quantized)
        found = load_file(tmp_path / "model.safetensors")
        size = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
        expected = stored_bytes(config, scheme if quantized else None, float_bytes=dtype.itemsize)
        assert size == expected
