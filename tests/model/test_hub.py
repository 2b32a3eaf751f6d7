"""Checkpoint folders: what goes in comes out, and what does not fit is named in one sentence."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from shapes import small_config

from model.hub import load_folder, read_config, save_folder


@pytest.mark.parametrize("indexer", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_exact(tmp_path, make_model, indexer, dtype):
    config = small_config(0)
    model = make_model(config, indexer=indexer, dtype=dtype)
    save_folder(model, tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.config == config and loaded.has_indexer == indexer
    state = model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    for name, value in loaded.state_dict().items():
        assert value.dtype == state[name].dtype and torch.equal(value, state[name]), name
    assert all(p.requires_grad for p in loaded.parameters())


def test_the_rope_base_that_was_raised_is_kept(tmp_path, make_model):
    model = make_model(small_config(1))
    model.set_rope_base(77_000.0)
    save_folder(model, tmp_path)
    assert load_folder(tmp_path).config.rope_base == 77_000.0


def test_untrained_indexer_is_marked_and_the_same_every_time(tmp_path, make_model):
    model = make_model(small_config(2))
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        save_folder(model, tmp_path / part)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    found = json.loads((tmp_path / "a/config.json").read_text())
    assert found["index_topk"] == model.config.max_positions
    assert found["glm5_pipeline"] == {
        "indexer": "untrained",
        "index_topk": model.config.index_top_k,
        "mtp_steps": 3,
    }
    config, trained = read_config(tmp_path / "a")
    assert config == model.config and not trained


def test_sharded_folder_and_copies_of_shared_weights(tmp_path, make_model):
    """The released layout: several files under an index, and the MTP layer's own embedding and head."""
    config = small_config(3)
    model = make_model(config, indexer=True)
    save_folder(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"model.layers.{config.num_layers}.embed_tokens.weight"] = tensors[
        "model.embed_tokens.weight"
    ].clone()
    tensors[f"model.layers.{config.num_layers}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_folder(tmp_path)
    assert all(
        torch.equal(a, b)
        for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True)
    )


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_bad_folders_get_one_sentence(tmp_path, make_model):
    model = make_model(small_config(4), indexer=True)
    save_folder(model, tmp_path)
    good = load_file(tmp_path / "model.safetensors")

    edit_config(tmp_path, hidden_size=model.config.hidden_size + 8)
    with pytest.raises(
        ValueError, match=r"tensor model.embed_tokens.weight has shape .*, and its config.json calls"
    ):
        load_folder(tmp_path)
    edit_config(tmp_path, hidden_size=model.config.hidden_size, num_hidden_layers=model.config.num_layers - 1)
    with pytest.raises(ValueError, match=r"model\.layers\.\d+\."):
        load_folder(tmp_path)
    edit_config(tmp_path, num_hidden_layers=model.config.num_layers)

    save_file({k: v for k, v in good.items() if k != "model.norm.weight"}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="has no tensor model.norm.weight"):
        load_folder(tmp_path)
    save_file(
        good | {"model.layers.0.self_attn.q_proj.weight": torch.zeros(2)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ValueError, match="has a tensor model.layers.0.self_attn.q_proj.weight"):
        load_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{broken")
    with pytest.raises(ValueError, match="is damaged"):
        load_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors is missing"):
        load_folder(tmp_path)

    edit_config(tmp_path, model_type="llama")
    with pytest.raises(ValueError, match="not of model_type glm_moe_dsa"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_folder(tmp_path)
