"""The network against transformers' GlmMoeDsaForCausalLM, through folders, in both directions."""

import copy

import pytest
import torch
import torch.nn.functional as F
from shapes import small_config
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

from model.config import preset
from model.hub import load_folder, save_folder
from model.hub.weights import exported, split_fused
from model.loss import next_targets, training_losses
from model.transformer import Transformer

CASES = [
    (seed, indexer, length) for seed in range(4) for indexer, length in ((False, 40), (True, 5), (True, 48))
]


def our_gradients(model: Transformer) -> dict[str, torch.Tensor]:
    """Gradients of our parameters under transformers' names."""
    holder = copy.deepcopy(model)
    for own, parameter in zip(holder.parameters(), model.parameters(), strict=True):
        own.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
    return dict(exported(holder))


def their_gradients(model: GlmMoeDsaForCausalLM) -> dict[str, torch.Tensor]:
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return split_fused(grads)


@pytest.mark.parametrize(("seed", "indexer", "length"), CASES)
def test_logits_and_gradients_equal(tmp_path, make_model, seed, indexer, length):
    config = small_config(seed, mtp_steps=0)
    model = make_model(config, seed, indexer=indexer)
    save_folder(model, tmp_path)
    theirs = GlmMoeDsaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(config.vocab_size, (2, length))
    attention = "sparse" if indexer else "dense"

    logits = model.logits(model(tokens, attention=attention).hidden_BTD)
    expected = theirs(tokens).logits
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)

    training_losses(model, tokens, next_targets(tokens), attention=attention).lm.backward()
    F.cross_entropy(expected[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    ours, reference = our_gradients(model), their_gradients(theirs)
    assert {n for n in ours if "indexer" not in n and "e_score" not in n} == set(reference)
    for name, gradient in reference.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            ours[name], gradient, atol=2e-4 * scale + 1e-7, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("seed", [10, 11])
@pytest.mark.parametrize("length", [9, 40])
def test_a_model_of_transformers_loads_here(tmp_path, seed, length):
    torch.manual_seed(seed)
    theirs = GlmMoeDsaForCausalLM(
        GlmMoeDsaConfig(
            vocab_size=70, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
            num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
            n_routed_experts=6, num_experts_per_tok=2,
            kv_lora_rank=12, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=10,
            index_topk=9, index_head_dim=8, index_n_heads=16, first_k_dense_replace=1,
            max_position_embeddings=64,
            initializer_range=0.2, rope_parameters={"rope_theta": 5e3, "rope_type": "default"},
        )
    )  # fmt: skip
    theirs.save_pretrained(tmp_path)
    model = load_folder(tmp_path)
    assert model.has_indexer and model.mtp is None
    tokens = torch.randint(70, (2, length))
    with torch.no_grad():
        ours = model.logits(model(tokens, attention="sparse").hidden_BTD)
        torch.testing.assert_close(ours, theirs(tokens).logits, atol=2e-4, rtol=1e-4)


def test_names_shapes_and_count_of_the_released_model():
    config = preset("glm5")
    with torch.device("meta"):
        model = Transformer(config, indexer=True)
        theirs = GlmMoeDsaForCausalLM(GlmMoeDsaConfig())
    ours = {name: tuple(tensor.shape) for name, tensor in exported(model)}
    trunk = {name: shape for name, shape in ours.items() if not name.startswith("model.layers.78.")}
    reference = {name: tuple(tensor.shape) for name, tensor in split_fused(theirs.state_dict()).items()}
    assert trunk == reference
    total = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in model.mtp.parameters())
    assert total == sum(p.numel() for p in theirs.parameters()) == 743_911_199_232
    # Too small a number to show in logits.
    attention = theirs.model.layers[0].self_attn
    assert attention.q_a_layernorm.variance_epsilon == attention.kv_a_layernorm.variance_epsilon
    assert attention.q_a_layernorm.variance_epsilon == model.blocks[0].attention.q_norm.eps
    assert theirs.model.norm.variance_epsilon == model.norm.eps
