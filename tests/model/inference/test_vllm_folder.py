"""Checkpoint folders as vLLM's CPU build serves them, and how its server is started. No vLLM is needed."""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import DeepseekV3ForCausalLM

from model.hub import save_folder
from model.inference.vllm import __main__ as launcher
from model.inference.vllm.folder import Servable, check_folder, write_view
from model.inference.vllm.serve import arguments

sys.path.append(str(Path(__file__).parents[1]))

from shapes import small_config

SHAPE = dict(kv_latent=512, qk_rope_dim=64, index_dim=64, index_top_k=24)


@pytest.fixture
def checkpoint(tmp_path, make_model):
    """``checkpoint(indexer, **shape)``: a model and its folder."""

    def make(indexer: bool = True, **shape):
        model = make_model(small_config(3, **{**SHAPE, **shape}), 3, indexer=indexer)
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        save_folder(model, folder)
        (folder / "tokenizer.json").write_text("{}")
        return model, folder

    return make


def test_a_view_is_deepseek_v3_up_to_top_k_tokens(checkpoint, tmp_path):
    model, folder = checkpoint()
    view = tmp_path / "view"
    view.mkdir()
    write_view(folder, view)
    config = json.loads((view / "config.json").read_text())
    assert config["model_type"] == "deepseek_v3" and not [key for key in config if key.startswith("index")]
    assert (view / "tokenizer.json").read_text() == "{}"
    assert (view / "model.safetensors").resolve() == folder / "model.safetensors"

    theirs = DeepseekV3ForCausalLM.from_pretrained(view, dtype=torch.float32).eval()
    row = torch.randint(model.config.vocab_size, (1, 60))
    with torch.no_grad():
        ours = model.logits(model(row, attention="sparse").hidden_BTD)[0]
        apart = (ours - theirs(row).logits[0]).abs().amax(-1)
    assert apart[: check_folder(folder).context].max() < 1e-4
    assert apart[check_folder(folder).context + 8 :].max() > 1e-2  # there the indexer leaves keys out


@pytest.mark.parametrize(("indexer", "context"), [(True, 24), (False, 64)])
def test_the_context_ends_where_keys_would_be_left_out(checkpoint, indexer, context):
    _, folder = checkpoint(indexer)
    assert check_folder(folder) == Servable(context, "float32")


def test_a_context_shorter_than_top_k_stays(checkpoint):
    _, folder = checkpoint(index_top_k=100)
    assert check_folder(folder).context == 64


def test_other_head_sizes_are_refused(checkpoint):
    _, folder = checkpoint(kv_latent=48, qk_rope_dim=16)
    with pytest.raises(ValueError, match="512 and 64 rotary features, and .* has 48 and 16"):
        check_folder(folder)


def test_the_server_is_told_what_makes_its_log_probs_right():
    cpu = arguments("glm5", "/view", 8001, Servable(64, "bfloat16"), [])
    option = dict(zip(cpu, cpu[1:], strict=False))
    assert option["--max-model-len"] == "64" and option["--dtype"] == "bfloat16"
    assert json.loads(option["--compilation-config"]) == {"custom_ops": ["none"]}
    cuda = arguments("glm5", "/folder", 8001, None, [])
    assert cuda[:2] == ["--model", "/folder"]
    assert not {"--max-model-len", "--compilation-config", "--attention-backend"} & set(cuda)


def test_other_options_are_passed_on_and_the_address_stays():
    words = arguments(
        "glm5", "/view", 8001, Servable(64, "float32"), ["--host", "0.0.0.0", "--max-num-seqs", "4"]
    )
    option = dict(zip(words, words[1:], strict=False))  # of two the last, as for vLLM's parser
    assert option["--host"] == "127.0.0.1" and option["--port"] == "8001" and option["--max-num-seqs"] == "4"


def test_without_its_environment_there_is_one_sentence(tmp_path, capsys):
    assert launcher.main(["glm5=/nowhere", "--python", str(tmp_path / "python")]) == 1
    assert "run `make vllm`" in capsys.readouterr().err
