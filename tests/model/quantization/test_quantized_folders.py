"""Quantised checkpoint folders: what goes in comes out, and what does not fit is named in one sentence."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from shapes import small_config

from model.hub import read_quantized, save_folder
from model.hub.folder import load_folder
from model.hub.quantized import exported_quantized
from model.kernels.int8_linear.reference import unpack_int4
from model.quantization.layers import install
from model.quantization.rotation import rotate_model
from model.quantization.rounding import QuantizedTensor, minmax_scale, quantize_weight
from pipeline import artifacts

EXPERTS = re.compile(r"blocks\.\d+\.ffn\.(gate_up|down)")
DENSE = re.compile(
    r"blocks\.\d+\.(attention\.(q_down|q_up|kv_down|out|indexer\.q_up)|ffn(\.shared)?\.(gate_up|down))\.weight"
)


def quantized(model, experts=4) -> dict[str, QuantizedTensor]:
    """Round to nearest, experts to ``experts`` bits and the rest of GLM-5's list to 8."""
    weights = {}
    for name, weight in model.state_dict().items():
        bits = experts if EXPERTS.fullmatch(name) else 8 if DENSE.fullmatch(name) else None
        if bits:
            scale = minmax_scale(weight, bits)
            weights[name] = QuantizedTensor(quantize_weight(weight, scale, bits), scale, bits)
    return weights


@pytest.fixture
def saved(tmp_path, make_model):
    """A model with a dense layer and experts, its quantised weights, and the folder with both."""
    config = small_config(0, num_layers=3, first_dense_layers=1, hidden_size=24, expert_ffn_size=12)
    model = make_model(config, indexer=True)
    weights = quantized(model)
    save_folder(model, tmp_path, weights)
    return model, weights, tmp_path


def test_the_folder_holds_the_same_integers_and_scales(saved):
    model, weights, folder = saved
    plain, parts = read_quantized(folder)
    expected = dict(exported_quantized(weights, model.config))
    assert parts.keys() == expected.keys() and len(parts) > 40
    for name, part in parts.items():
        assert part.bits == expected[name].bits == (4 if ".experts." in name else 8)
        assert torch.equal(part.values, expected[name].values) and torch.equal(
            part.scale, expected[name].scale
        )
    assert torch.equal(plain["lm_head.weight"], model.head.weight)
    assert not plain.keys() & parts.keys()
    mtp = f"model.layers.{model.config.num_layers}."
    assert all(name in plain for name in (mtp + "eh_proj.weight", mtp + "mlp.experts.0.up_proj.weight"))


def test_the_config_names_formats_and_what_stays_float(saved):
    found = json.loads((saved[2] / "config.json").read_text())["quantization_config"]
    groups = found["config_groups"]
    assert found["format"] == "mixed-precision"
    assert {name: group["format"] for name, group in groups.items()} == {
        "int4": "pack-quantized", "int8": "int-quantized",
    }  # fmt: skip
    assert groups["int4"]["targets"] == [
        rf"re:model\.layers\.\d+\.mlp\.experts\.\d+\.{part}_proj$" for part in ("down", "gate", "up")
    ]
    kept = ("mlp.gate", "kv_b_proj", "indexer.wk", "indexer.weights_proj")
    for pattern in ["lm_head", r"re:model\.layers\.3\..*"]:
        assert pattern in found["ignore"]
    for module in (
        f"model.layers.1.{'' if '.' in name and 'mlp' in name else 'self_attn.'}{name}" for name in kept
    ):
        assert any(re.match(pattern[3:], module) for pattern in found["ignore"])


def test_a_folder_for_8_bits_alone_has_one_format(tmp_path, make_model):
    model = make_model(small_config(1, first_dense_layers=0), indexer=True)
    save_folder(model, tmp_path, quantized(model, experts=8))
    found = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert found["format"] == "int-quantized"
    # Beside the real group one for transformers, which no module is in.
    assert found["config_groups"].keys() == {"int8", "experts_multiplied_out"}
    nothing, real = (found["config_groups"][name]["targets"] for name in ("experts_multiplied_out", "int8"))
    modules = [name.removesuffix(".weight") for name in load_file(tmp_path / "model.safetensors")]
    assert not any(re.match(nothing[0].removeprefix("re:"), name) for name in [*modules, "experts"])
    expert = "model.layers.1.mlp.experts.0.up_proj"
    assert expert in modules and sum(bool(re.match(t.removeprefix("re:"), expert)) for t in real) == 1
    _, parts = read_quantized(tmp_path)
    assert {part.bits for part in parts.values()} == {8}


def test_a_layer_that_is_left_out_is_named(tmp_path, make_model):
    model = make_model(small_config(2, num_layers=3), indexer=True)
    weights = quantized(model)
    left_out = weights.pop("blocks.1.attention.out.weight")
    save_folder(model, tmp_path, weights)
    plain, parts = read_quantized(tmp_path)
    name = "model.layers.1.self_attn.o_proj.weight"
    assert name in plain and name not in parts and plain[name].shape == left_out.values.shape
    assert "model.layers.0.self_attn.o_proj.weight" in parts


def test_weights_that_no_export_can_hold_are_refused(tmp_path, make_model):
    model = make_model(small_config(3), indexer=True)
    weight = model.blocks[0].attention.k_up.weight
    part = QuantizedTensor(torch.zeros(weight.shape, dtype=torch.int8), torch.ones(len(weight), 1), 8)
    with pytest.raises(ValueError, match="part of kv_b_proj"):
        save_folder(model, tmp_path, {"blocks.0.attention.k_up.weight": part})
    with pytest.raises(ValueError, match="blocks.9.attention.out.weight is no weight of this model"):
        save_folder(model, tmp_path, {"blocks.9.attention.out.weight": part})
    six = QuantizedTensor(part.values, part.scale, 6)
    with pytest.raises(ValueError, match="4 or 8 bits, not 6"):
        save_folder(model, tmp_path, {"blocks.0.attention.q_down.weight": six})


def group_of(found, bits):
    return found["quantization_config"]["config_groups"][f"int{bits}"]


CONFIG_FAULTS = [
    (lambda c: c["quantization_config"].update(quant_method="fp8"), "quantised by 'fp8', and only"),
    (lambda c: c.update(quantization_config=[]), r"quantised by \[\]"),
    (lambda c: c["quantization_config"].update(config_groups={}), "has no config_groups"),
    (lambda c: group_of(c, 4).pop("weights"), "does not say how weights"),
    (lambda c: group_of(c, 4)["weights"].update(strategy="group", group_size=128), "by 'group' of 128"),
    (lambda c: group_of(c, 8)["weights"].update(num_bits=5), "not of symmetric integers"),
    (lambda c: group_of(c, 8)["weights"].update(symmetric=False), "not of symmetric integers"),
    (lambda c: group_of(c, 8)["input_activations"].update(dynamic=False), "activations other than dynamic"),
    (lambda c: group_of(c, 8)["input_activations"].update(type="float"), "activations other than dynamic"),
    (lambda c: group_of(c, 4)["input_activations"].update(symmetric=False), "activations other than dynamic"),
    (lambda c: group_of(c, 4).update(format=None), "stores 4 bits as 'mixed-precision'"),
    (lambda c: group_of(c, 4).update(format="int-quantized"), "stores 4 bits as 'int-quantized'"),
    (lambda c: group_of(c, 4)["targets"].append("re:("), "is no pattern"),
    (lambda c: group_of(c, 4).update(targets=3), "targets and ignore are no lists"),
    (lambda c: c["quantization_config"].update(ignore=3), "targets and ignore are no lists"),
    (lambda c: group_of(c, 8)["weights"].update(num_bits=[8]), "not of symmetric integers"),
    (lambda c: c["quantization_config"]["ignore"].append(r"re:.*o_proj$"), "o_proj.weight_scale that its"),
    (lambda c: c.pop("quantization_config"), "has no tensor model.layers.1.mlp.experts.0.gate_proj.weight"),
    (lambda c: c.update(glm5_pipeline=[]), "glm5_pipeline is no object"),
    (lambda c: c.update(rope_parameters=None), "rope_parameters is no object"),
    (lambda c: c.update(hidden_size=-1), "hidden_size is -1, which no model has"),
    (lambda c: c.update(q_lora_rank="x"), "q_lora_rank is 'x'"),
    (lambda c: c.update(kv_lora_rank=10**30), "kv_lora_rank is 10+, which"),
    (lambda c: c.update(hidden_size=2**31 - 1), "has sizes that no tensor has"),
    (lambda c: c.update(first_k_dense_replace=9), "first_dense_layers is larger than num_layers"),
    (lambda c: c.update(num_hidden_layers=10**9), "calls for 1000000000 layers"),
    (lambda c: c.update(n_routed_experts=10**9), "with 1000000000 experts"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "sentence"), CONFIG_FAULTS, ids=[str(n) for n in range(len(CONFIG_FAULTS))]
)
def test_a_wrong_quantization_config_gets_one_sentence(saved, fault, sentence):
    path = saved[2] / "config.json"
    found = json.loads(path.read_text())
    fault(found)
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=sentence) as error:
        load_folder(saved[2])
    assert "\n" not in str(error.value)


EXPERT = "model.layers.1.mlp.experts.0.down_proj.weight"
OUT = "model.layers.0.self_attn.o_proj.weight"
OUT_KV = "model.layers.0.self_attn.kv_b_proj.weight"
STACK = "model.layers.1.mlp.experts."
TENSOR_FAULTS = [
    (lambda t: t.pop(f"{EXPERT}_scale"), f"has no tensor {EXPERT}_scale"),
    (lambda t: t.pop(f"{EXPERT}_packed"), f"has no tensor {EXPERT}_packed"),
    (lambda t: t.update({f"{EXPERT}_shape": torch.tensor([24, 13])}), r"_shape says \[24, 13\]"),
    (lambda t: t.update({f"{EXPERT}_packed": t[f"{EXPERT}_packed"][:, :1]}), r"_packed has shape \(24, 1\)"),
    (lambda t: t.update({f"{EXPERT}_packed": t[f"{EXPERT}_packed"].float()}), "float32 where torch.int32"),
    (lambda t: t.update({f"{EXPERT}_scale": torch.ones(24, 2)}), r"_scale has shape \(24, 2\)"),
    (lambda t: t[f"{OUT}_scale"].fill_(float("nan")), f"{OUT}_scale holds what is no positive number"),
    (lambda t: t[f"{OUT}_scale"].zero_(), f"{OUT}_scale holds what is no positive number"),
    (lambda t: t.update({f"{OUT}_scale": t[f"{OUT}_scale"].double() * 1e-300}), "holds what is no positive"),
    (lambda t: t.update({"model.norm.weight": t["model.norm.weight"].int()}), "is torch.int32 where a float"),
    (lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn)}), "where a float is"),
    (lambda t: t.update({OUT: t[OUT].float()}), f"{OUT} is torch.float32 where torch.int8"),
    (lambda t: t.update({OUT_KV: t[OUT_KV].half()}), "float16 and embed_tokens.weight torch.float32"),
    (lambda t: t["model.norm.weight"][2:3].fill_(float("nan")), "model.norm.weight holds NaN or infinity"),
    (lambda t: t[OUT_KV][:1, :1].fill_(float("inf")), f"{OUT_KV} holds NaN or infinity"),
    (lambda t: t.update({f"{STACK}gate_up_proj": torch.zeros(8, 24, 24)}), "stacks of experts that do"),
    (lambda t: t.update({f"{STACK}{one}_proj": torch.ones(()) for one in ("gate_up", "down")}), "of experts"),
    (lambda t: t.update({f"{OUT}_zero_point": torch.zeros(24, 1)}), f"has a tensor {OUT}_zero_point"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "sentence"), TENSOR_FAULTS, ids=[str(n) for n in range(len(TENSOR_FAULTS))]
)
def test_wrong_tensors_get_one_sentence(saved, fault, sentence):
    path = saved[2] / "model.safetensors"
    tensors = load_file(path)
    fault(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    with pytest.raises(ValueError, match=sentence) as error:
        load_folder(saved[2])
    assert "\n" not in str(error.value)


def test_a_least_value_of_others_is_kept_and_computed_with(saved):
    path = saved[2] / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{EXPERT}_packed"].zero_()  # -8, which is never rounded to here
    save_file(tensors, path)
    assert read_quantized(saved[2])[1][EXPERT].values.unique().tolist() == [-8]
    layer = load_folder(saved[2]).blocks[1].ffn.quantized
    assert unpack_int4(layer.down[0]).unique().tolist() == [-8]


def test_parts_of_one_weight_of_different_bits_get_one_sentence(saved):
    model, weights, folder = saved
    tensors = load_file(folder / "model.safetensors")
    for expert in range(model.config.num_experts):
        name = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
        tensors |= {name: torch.zeros(12, 24, dtype=torch.int8)}
        del tensors[f"{name}_packed"], tensors[f"{name}_shape"]
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    found = json.loads(path.read_text())
    up = r"re:model\.layers\.1\.mlp\.experts\.\d+\.up_proj$"
    found["quantization_config"]["config_groups"] = {
        "first": {**group_of(found, 8), "targets": [up]}, **found["quantization_config"]["config_groups"],
    }  # fmt: skip
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"the parts of blocks.1.ffn.gate_up have \[4, 8\] bits"):
        load_folder(folder)


def test_a_model_before_sparse_attention_goes_through_too(tmp_path, make_model):
    model = make_model(small_config(7))
    weights = quantized(model)
    save_folder(model, tmp_path, weights)
    install(model, weights)
    loaded = load_folder(tmp_path)
    tokens = torch.randint(model.config.vocab_size, (1, 12))
    with torch.inference_mode():
        assert not loaded.has_indexer
        assert torch.equal(loaded(tokens).hidden_BTD, model(tokens).hidden_BTD)


def test_a_truncated_file_is_damaged(saved):
    path = saved[2] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        load_folder(saved[2])


@pytest.fixture
def published(saved, tmp_path_factory) -> Path:
    """The folder as an artifact: the same weights in it and in ``w8a8/``, and the record of all files."""
    _, _, draft = saved
    names = ("config.json", "model.safetensors")
    (draft / "w8a8").mkdir()
    for name in names:
        shutil.copyfile(draft / name, draft / "w8a8" / name)
    final = tmp_path_factory.mktemp("artifacts") / "quantize"
    artifacts.publish(draft, final, {"identity": "of a test"})
    return final


def flip(path: Path, count: int = 64) -> None:
    """All bits of ``count`` bytes of the integers of one expert."""
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    name = "model.layers.1.mlp.experts.0.down_proj.weight_packed"
    at = 8 + header + json.loads(data[8 : 8 + header])[name]["data_offsets"][0]
    data[at : at + count] = bytes(byte ^ 0xFF for byte in data[at : at + count])
    path.write_bytes(data)


@pytest.mark.parametrize("where", ["", "w8a8"])
def test_flipped_bytes_are_found_by_the_record(published, where):
    folder = published / where
    load_folder(folder)
    flip(folder / "model.safetensors")
    for read in (load_folder, read_quantized):
        with pytest.raises(ValueError, match="model.safetensors was changed or damaged after it was written"):
            read(folder)
    load_folder(published / ("" if where else "w8a8"))  # the other is whole
    with pytest.raises(ValueError, match=r"^[^\n]*`glm5 run quantize --force`$"):
        load_folder(folder)


def test_a_shard_is_checked_too(saved, tmp_path_factory):
    _, _, draft = saved
    (draft / "model.safetensors").rename(draft / "model-00001.safetensors")
    names = load_file(draft / "model-00001.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-00001.safetensors")}
    (draft / "model.safetensors.index.json").write_text(json.dumps(index))
    final = tmp_path_factory.mktemp("artifacts") / "quantize"
    artifacts.publish(draft, final, {"identity": "of a test"})
    load_folder(final)
    flip(final / "model-00001.safetensors")
    with pytest.raises(ValueError, match="model-00001.safetensors was changed or damaged"):
        load_folder(final)


def test_a_copied_artifact_with_a_card_beside_it_loads(published, tmp_path_factory):
    copy = tmp_path_factory.mktemp("release") / "model"  # as `glm5 release` makes one
    shutil.copytree(published, copy)
    (copy / "README.md").write_text("# A card\n")
    load_folder(copy)
    load_folder(copy / "w8a8")
    flip(copy / "model.safetensors")
    with pytest.raises(ValueError, match="model.safetensors was changed or damaged"):
        load_folder(copy)


def test_without_a_record_nothing_is_compared(published, tmp_path_factory):
    for where in ("", "w8a8"):
        copy = tmp_path_factory.mktemp("export") / "copy"
        copy.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(published / where / name, copy / name)
        flip(copy / "model.safetensors")
        load_folder(copy)
        for foreign in ("[]", "{}", '{"files": 3}', '{"files": {"another": [1, "2"]}}'):
            (copy / "record.json").write_text(foreign)
            load_folder(copy)


@pytest.mark.parametrize("where", ["", "w8a8"])
@pytest.mark.parametrize("text", ["{", "", "[" * 99_999, "\udcff"], ids=range(4))
def test_a_damaged_record_gets_one_sentence(published, where, text):
    (published / "record.json").write_text(text, errors="surrogateescape")
    with pytest.raises(
        ValueError, match=r"^\S*record.json, which has the hashes .* is damaged: [^\n]*--force"
    ):
        load_folder(published / where)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 99_999], ids=range(6)
)
def test_a_broken_index_gets_one_sentence(saved, text):
    (saved[2] / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match="index.json does not say where tensors are"):
        load_folder(saved[2])


def test_a_config_of_ten_thousands_of_brackets_gets_one_sentence(saved):
    (saved[2] / "config.json").write_text("[" * 99_999)
    with pytest.raises(ValueError, match="config.json is not JSON"):
        load_folder(saved[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_and_routers_may_be_float32_beside_narrow_weights(saved, dtype):
    path = saved[2] / "model.safetensors"
    kept = re.compile(r".*((_a_|_attention_|input_)layernorm|mlp\.gate|weights_proj)\.\w+|model.norm.weight")
    tensors = {
        name: value.to(dtype) if value.is_floating_point() and not kept.fullmatch(name) else value
        for name, value in load_file(path).items()
    }
    assert len({value.dtype for value in tensors.values() if value.is_floating_point()}) == 2
    save_file(tensors, path)
    model = load_folder(saved[2]).eval()
    with torch.inference_mode():
        found = model(torch.arange(20)[None], attention="sparse")
        assert model.logits(found.hidden_BTD).isfinite().all()


def test_the_head_and_correction_of_a_rotated_models_mtp_block_survive(tmp_path, make_model):
    model = make_model(small_config(5), indexer=True)
    rotate_model(model, seed=1)
    save_folder(model, tmp_path)
    loaded = load_folder(tmp_path)
    state = model.state_dict()
    assert loaded.state_dict().keys() == state.keys() >= {"mtp.correction.weight", "mtp.head.weight"}
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    tokens = torch.randint(model.config.vocab_size, (1, 9))
    expected, _ = model.mtp_states(tokens, model(tokens).hidden_BTD, steps=2)
    found, _ = loaded.mtp_states(tokens, loaded(tokens).hidden_BTD, steps=2)
    assert torch.equal(loaded.draft_head(found[1]), model.draft_head(expected[1]))


def test_a_rotated_mtp_block_without_its_correction_gets_one_sentence(tmp_path, make_model):
    model = make_model(small_config(5), indexer=True)
    rotate_model(model, seed=1)
    save_folder(model, tmp_path)
    path, mtp = tmp_path / "model.safetensors", f"model.layers.{model.config.num_layers}"
    tensors = load_file(path)
    del tensors[f"{mtp}.rot.weight"]
    save_file(tensors, path)
    with pytest.raises(ValueError, match=rf"has no tensor {mtp}.rot.weight, which goes with {mtp}.shared"):
        load_folder(tmp_path)
    tensors[f"{mtp}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()  # the released layout
    save_file(tensors, path)
    assert load_folder(tmp_path).mtp.correction is None


def test_a_loaded_model_computes_as_the_one_that_was_saved(saved):
    model, weights, folder = saved
    install(model, weights)
    loaded = load_folder(folder)
    tokens = torch.randint(model.config.vocab_size, (2, 20))
    with torch.inference_mode():
        expected, found = model(tokens, attention="sparse"), loaded(tokens, attention="sparse")
        assert torch.equal(loaded.logits(found.hidden_BTD), model.logits(expected.hidden_BTD))
        drafts, _ = loaded.mtp_states(tokens, found.hidden_BTD, steps=2, attention="sparse")
        others, _ = model.mtp_states(tokens, expected.hidden_BTD, steps=2, attention="sparse")
        assert torch.equal(drafts[1], others[1])
    assert not any(tensor.is_meta for tensor in loaded.state_dict().values())
    with pytest.raises(ValueError, match="computes with integers"):
        save_folder(loaded, folder)
