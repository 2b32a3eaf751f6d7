"""Checkpoints as Hugging Face ``glm_moe_dsa`` folders: the only place that knows Hugging Face's names.

    save_folder(model, folder)
    save_folder(floats, folder, quantized)      # what quantize_model gives: compressed-tensors' layout
    model = load_folder(folder)                 # of a quantised folder one that computes with integers

The folder holds ``config.json`` and ``model.safetensors`` with the released checkpoint's names: per-expert
tensors, ``kv_b_proj`` with every head's [W_UK; W_UV] rows, the MTP block as layer ``num_hidden_layers``.
Folders written by transformers load as well, and so do sharded ones. The MTP block of a rotated model has a
``shared_head.head.weight`` of its own and a ``rot.weight`` (model/mtp.py), which others pass over.

What ``glm_moe_dsa`` has no word for stands under the key ``glm5_pipeline`` of config.json:

* ``mtp_steps``: the steps that the one stored MTP block is trained for;
* ``indexer``: "trained", or "untrained" for a model before DSA warm-up. Such a folder carries fresh indexer
  weights, because transformers and vLLM want some, and an ``index_topk`` of the longest context, under which
  every key is selected and attention is dense. ``load_folder`` drops the weights again; the real value is
  under ``index_topk`` here.
"""

from model.hub.config import read_config
from model.hub.folder import load_folder, read_quantized, save_folder

__all__ = ["load_folder", "read_config", "read_quantized", "save_folder"]
