"""Tensor names and layouts of Hugging Face's ``glm_moe_dsa``, from and to ours."""

from collections.abc import Iterator, Mapping

import torch

from model.config import ModelConfig
from model.transformer import Transformer

# Ours: theirs, inside a layer, where one tensor is one tensor.
RENAMED = {
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attention.q_down.weight": "self_attn.q_a_proj.weight",
    "attention.q_norm.weight": "self_attn.q_a_layernorm.weight",
    "attention.q_up.weight": "self_attn.q_b_proj.weight",
    "attention.kv_down.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.kv_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "attention.indexer.q_up.weight": "self_attn.indexer.wq_b.weight",
    "attention.indexer.key.weight": "self_attn.indexer.wk.weight",
    "attention.indexer.key_norm.weight": "self_attn.indexer.k_norm.weight",
    "attention.indexer.key_norm.bias": "self_attn.indexer.k_norm.bias",
    "attention.indexer.head_weight.weight": "self_attn.indexer.weights_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
    "ffn.router.weight": "mlp.gate.weight",
    "ffn.router.bias": "mlp.gate.e_score_correction_bias",
    "ffn.shared.down.weight": "mlp.shared_experts.down_proj.weight",
}
OUTSIDE = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
MTP_OUTSIDE = {
    "mtp.embed_norm.weight": "enorm.weight",
    "mtp.hidden_norm.weight": "hnorm.weight",
    "mtp.join.weight": "eh_proj.weight",
    "mtp.norm.weight": "shared_head.norm.weight",
    # Only of a rotated model, whose MTP block cannot share the trunk's head (model/mtp.py).
    "mtp.head.weight": "shared_head.head.weight",
    "mtp.correction.weight": "rot.weight",
}
GATE_UP = {"ffn.gate_up.weight": "mlp", "ffn.shared.gate_up.weight": "mlp.shared_experts"}


def exported(model: Transformer) -> Iterator[tuple[str, torch.Tensor]]:
    """Hugging Face's names with their tensors (views where possible), on any device, meta included."""
    yield from export_state(model.state_dict(), model.config)


def export_state(
    state: Mapping[str, torch.Tensor], config: ModelConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same of a state dict, or of a part of one: rows of each tensor are those of Hugging Face's."""
    for ours, theirs in OUTSIDE.items():
        if ours in state:
            yield theirs, state[ours]
    for number in range(config.num_layers):
        yield from _export_layer(state, f"blocks.{number}.", f"model.layers.{number}.", config)
    prefix = f"model.layers.{config.num_layers}."
    for ours, theirs in MTP_OUTSIDE.items():
        if ours in state:
            yield prefix + theirs, state[ours]
    yield from _export_layer(state, "mtp.block.", prefix, config)


def _export_layer(
    state: Mapping[str, torch.Tensor], ours: str, theirs: str, config: ModelConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, other in RENAMED.items():
        if ours + name in state:
            yield theirs + other, state[ours + name]
    if ours + "attention.k_up.weight" in state:
        k_up = state[ours + "attention.k_up.weight"].unflatten(0, (config.num_heads, -1))
        v_up = state[ours + "attention.v_up.weight"].unflatten(0, (config.num_heads, -1))
        yield theirs + "self_attn.kv_b_proj.weight", _joined(k_up, v_up).flatten(0, 1)
    for name, other in GATE_UP.items():
        if ours + name in state:
            gate, up = state[ours + name].chunk(2)
            yield f"{theirs}{other}.gate_proj.weight", gate
            yield f"{theirs}{other}.up_proj.weight", up
    for expert, gate_up in enumerate(state.get(ours + "ffn.gate_up", ())):
        gate, up = gate_up.chunk(2)
        yield f"{theirs}mlp.experts.{expert}.gate_proj.weight", gate
        yield f"{theirs}mlp.experts.{expert}.up_proj.weight", up
    for expert, down in enumerate(state.get(ours + "ffn.down", ())):
        yield f"{theirs}mlp.experts.{expert}.down_proj.weight", down


def _joined(first_HXL: torch.Tensor, second_HYL: torch.Tensor) -> torch.Tensor:
    """``torch.cat`` along dimension 1. On the meta device that one loads PyTorch's compiler: two seconds."""
    heads, rows, width = first_HXL.shape
    both = first_HXL.new_empty(heads, rows + second_HYL.shape[1], width)
    both[:, :rows], both[:, rows:] = first_HXL, second_HYL
    return both


def imported(tensors: Mapping[str, torch.Tensor], config: ModelConfig) -> dict[str, torch.Tensor]:
    """Our state dict from Hugging Face's tensors, whose shapes were checked, or from a part of them.

    Raises ``KeyError`` where a tensor of ours has only some of its parts there.
    """
    state = {ours: tensors[theirs] for ours, theirs in OUTSIDE.items() if theirs in tensors}
    for number in range(config.num_layers):
        state |= _import_layer(tensors, f"blocks.{number}.", f"model.layers.{number}.", config)
    prefix = f"model.layers.{config.num_layers}."
    state |= {
        ours: tensors[prefix + theirs] for ours, theirs in MTP_OUTSIDE.items() if prefix + theirs in tensors
    }
    return state | _import_layer(tensors, "mtp.block.", prefix, config)


def _import_layer(
    tensors: Mapping[str, torch.Tensor], ours: str, theirs: str, config: ModelConfig
) -> dict[str, torch.Tensor]:
    state = {ours + a: tensors[theirs + b] for a, b in RENAMED.items() if theirs + b in tensors}
    if theirs + "self_attn.kv_b_proj.weight" in tensors:
        kv_up = tensors[theirs + "self_attn.kv_b_proj.weight"].unflatten(0, (config.num_heads, -1))
        k_up, v_up = kv_up.split([config.qk_nope_dim, config.v_dim], 1)
        state[ours + "attention.k_up.weight"] = k_up.flatten(0, 1).contiguous()
        state[ours + "attention.v_up.weight"] = v_up.flatten(0, 1).contiguous()
    for name, other in GATE_UP.items():
        if f"{theirs}{other}.gate_proj.weight" in tensors:
            state[ours + name] = torch.cat(
                [tensors[f"{theirs}{other}.{part}_proj.weight"] for part in ("gate", "up")]
            )
    experts = [f"{theirs}mlp.experts.{expert}." for expert in range(config.num_experts)]
    if f"{experts[0]}gate_proj.weight" in tensors:
        gate, up = (
            torch.stack([tensors[f"{e}{part}_proj.weight"] for e in experts]) for part in ("gate", "up")
        )
        state[ours + "ffn.gate_up"] = torch.cat([gate, up], 1)
    if f"{experts[0]}down_proj.weight" in tensors:
        state[ours + "ffn.down"] = torch.stack([tensors[f"{e}down_proj.weight"] for e in experts])
    return state


def split_fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Expert stacks, as transformers holds them in memory, become per-expert tensors."""
    for name in [n for n in tensors if n.endswith("mlp.experts.gate_up_proj")]:
        prefix = name.removesuffix("gate_up_proj")
        pairs = zip(tensors.pop(name), tensors.pop(prefix + "down_proj"), strict=True)
        for expert, (gate_up, down) in enumerate(pairs):
            gate, up = gate_up.chunk(2)
            for part, tensor in (("gate", gate), ("up", up), ("down", down)):
                tensors[f"{prefix}{expert}.{part}_proj.weight"] = tensor
    return tensors
