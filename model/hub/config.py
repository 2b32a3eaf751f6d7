"""config.json of Hugging Face's ``glm_moe_dsa``, from and to ``ModelConfig``."""

import json
from numbers import Real
from pathlib import Path

from pydantic import ValidationError

from model.config import ModelConfig
from model.quantization.export import Groups, read_groups
from model.transformer import Transformer

OWN_KEY = "glm5_pipeline"

# ModelConfig field: key of config.json.
CONFIG_KEYS = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_layers": "num_hidden_layers",
    "first_dense_layers": "first_k_dense_replace", "ffn_size": "intermediate_size",
    "num_heads": "num_attention_heads", "q_latent": "q_lora_rank", "kv_latent": "kv_lora_rank",
    "qk_nope_dim": "qk_nope_head_dim", "qk_rope_dim": "qk_rope_head_dim", "v_dim": "v_head_dim",
    "num_experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts", "expert_ffn_size": "moe_intermediate_size",
    "routed_scale": "routed_scaling_factor", "index_heads": "index_n_heads", "index_dim": "index_head_dim",
    "max_positions": "max_position_embeddings", "norm_eps": "rms_norm_eps", "init_std": "initializer_range",
}  # fmt: skip

# What every GLM-5 config.json says, whatever its size. Stop tokens are in generation_config.json.
CONSTANTS = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_act": "silu",
    "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False, "use_cache": True,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "moe_layer_freq": 1, "rope_interleave": True, "indexer_rope_interleave": True,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


# Sizes that may be none at all; a foreign config.json may have any number.
MAY_BE_ZERO = ("first_dense_layers", "num_shared_experts", "mtp_steps", "init_std")
LARGEST = 2**31 - 1


def config_json(model: Transformer) -> dict:
    """config.json of a model."""
    config = model.config
    index_top_k = config.index_top_k if model.has_indexer else config.max_positions
    own = {
        "mtp_steps": config.mtp_steps,
        "indexer": "trained" if model.has_indexer else "untrained",
        "index_topk": config.index_top_k,
    }
    return {
        **CONSTANTS,
        **{theirs: getattr(config, ours) for ours, theirs in CONFIG_KEYS.items()},
        "num_key_value_heads": config.num_heads,
        "head_dim": config.qk_rope_dim,
        "qk_head_dim": config.qk_dim,
        "index_topk": index_top_k,
        "rope_parameters": {"rope_theta": config.rope_base, "rope_type": "default"},
        "num_nextn_predict_layers": 1 if config.mtp_steps else 0,
        "dtype": str(model.embed.weight.dtype).removeprefix("torch."),
        OWN_KEY: own,
    }


def read_config(folder: str | Path) -> tuple[ModelConfig, bool]:
    """Shape of a folder's model, and whether its indexer weights are trained ones."""
    path = Path(folder) / "config.json"
    found = _read(path)
    own, rope = found.get(OWN_KEY, {}), found.get("rope_parameters", {})
    if not isinstance(own, dict) or not isinstance(rope, dict):
        key = OWN_KEY if isinstance(rope, dict) else "rope_parameters"
        raise ValueError(f"{path}: {key} is no object with keys; copy the folder again")
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"{path} asks for scaled rotary positions, which GLM-5 does not have")
    try:
        fields = {ours: found[theirs] for ours, theirs in CONFIG_KEYS.items()}
        fields["rope_base"] = rope["rope_theta"]
        fields["index_top_k"] = own.get("index_topk", found["index_topk"])
    except KeyError as error:
        raise ValueError(f"{path} has no key {error}; choose a GLM-5 checkpoint") from error
    # A foreign folder with an MTP block says nothing of the steps: three, as in the paper.
    fields["mtp_steps"] = own.get("mtp_steps", 3 if found.get("num_nextn_predict_layers") else 0)
    _check_numbers(path, fields)
    try:
        return ModelConfig(**fields), own.get("indexer") != "untrained"
    except ValidationError as error:
        first = error.errors()[0]
        which = ".".join(map(str, first["loc"])) or "its shape"
        raise ValueError(f"{path}: {which} is wrong ({first['msg']}); copy the folder again") from error


def read_quantization(folder: str | Path) -> Groups | None:
    """How a folder's weights are quantised; None where they are not."""
    path = Path(folder) / "config.json"
    found = _read(path).get("quantization_config")
    return None if found is None else read_groups(found, str(path))


def _check_numbers(path: Path, fields: dict) -> None:
    for name, value in fields.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not (0 if name in MAY_BE_ZERO else 1e-30) <= value <= LARGEST:
            key = CONFIG_KEYS.get(name, name)
            raise ValueError(f"{path}: {key} is {value!r}, which no model has; copy the folder again")


def _read(path: Path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); copy the folder again") from error
    if not isinstance(found, dict) or found.get("model_type") != CONSTANTS["model_type"]:
        raise ValueError(f"{path} is not of model_type glm_moe_dsa; choose a GLM-5 checkpoint")
    return found
