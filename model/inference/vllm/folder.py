"""A checkpoint folder as vLLM's CPU build can serve it.

That build refuses sparse attention. Up to ``index_topk`` tokens of context sparse attention selects every
key, and GLM-5 is then DeepSeek-V3: the same tensors under the same names, less the indexer's, which vLLM
skips. So a folder with another config.json and links to the other files is served as DeepSeek-V3, with its
context cut to ``index_topk``. On CUDA the folder is served as it is.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from model.hub import read_config

# The CPU kernel for decoding over the latent is compiled for this width of a cached token alone.
KV_LATENT, QK_ROPE = 512, 64
DTYPES = ("float32", "bfloat16", "float16")
DEEPSEEK = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}


@dataclass(frozen=True)
class Servable:
    """``context``: tokens of prompt and answer together up to which the answers are the model's."""

    context: int
    dtype: str


def check_folder(folder: str | Path) -> Servable:
    """What vLLM's CPU build can do with a folder. Raises ``ValueError`` where it is nothing."""
    config, indexer = read_config(folder)
    if (config.kv_latent, config.qk_rope_dim) != (KV_LATENT, QK_ROPE):
        raise ValueError(
            f"vLLM's CPU attention is built for a latent of {KV_LATENT} and {QK_ROPE} rotary features, and "
            f"{folder} has {config.kv_latent} and {config.qk_rope_dim}: choose a checkpoint of GLM-5's head "
            "sizes, or serve this one with model.inference.server"
        )
    dtype = _config_json(folder).get("dtype", "float32")
    if dtype not in DTYPES:
        raise ValueError(f"{folder} is in {dtype}, and vLLM computes in {', '.join(DTYPES)}: convert it")
    context = min(config.index_top_k, config.max_positions) if indexer else config.max_positions
    return Servable(context, dtype)


def write_view(folder: str | Path, view: str | Path) -> None:
    """Fill the empty folder ``view`` with the checkpoint as DeepSeek-V3: a config.json, and links."""
    folder, view = Path(folder).absolute(), Path(view)
    found = {k: v for k, v in _config_json(folder).items() if not k.startswith("index")} | DEEPSEEK
    (view / "config.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        if file.name != "config.json" and file.is_file():
            (view / file.name).symlink_to(file)


def _config_json(folder: str | Path) -> dict:
    return json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
