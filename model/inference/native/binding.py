"""``decode_pass`` of ``decode.cpp`` over a model's own weights and cache.

B requests, P pages of a row, V vocabulary.
"""

import ctypes

import torch

from model.attention.cache import PagedCache
from model.attention.mla import LATENT_NORM_EPS, AttentionOptions
from model.inference.native.build import library
from model.moe import MoE
from model.quantization.layers import is_quantized
from model.transformer import Block, Transformer


class NativePass:
    """Reads the weights where they are: new ones that are copied in place count from the next pass on."""

    def __init__(self, model: Transformer, cache: PagedCache, options: AttentionOptions):
        """Raises ``ValueError`` for a model that is not float32 on a CPU, and where there is no compiler."""
        floats = {p.dtype for p in model.parameters()} == {torch.float32} and not is_quantized(model)
        if not floats or model.embed.weight.device.type != "cpu":
            raise ValueError(
                "native code decodes float32 models on a CPU: use another way, or convert the model"
            )
        self._run = library().decode_pass
        self._vocabulary = model.config.vocab_size
        tensors = [model.embed.weight, model.norm.weight, model.head.weight]
        for number, block in enumerate(model.blocks):
            first_moe = model.config.first_dense_layers
            tensors += _layer(block, cache, number, first_moe, options.mode == "sparse")
        if any(tensor is not None and not tensor.is_contiguous() for tensor in tensors):
            raise ValueError("native code needs weights that are contiguous in memory: clone them")
        self._tensors = tensors  # their memory must not go before this object does
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        self._pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self._sizes = _sizes(model, cache, options)
        config = model.config
        numbers = (config.norm_eps, LATENT_NORM_EPS, config.routed_scale, config.rope_base)
        self._numbers = (ctypes.c_double * len(numbers))(*numbers)

    def __call__(self, input_BW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As ``Decoder._pass``."""
        B, width = input_BW.shape
        logits_BV, logprob_BV = (torch.empty(B, self._vocabulary) for _ in range(2))
        best_2B = torch.empty(2, B, dtype=torch.float64)
        outputs = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (logits_BV, logprob_BV, best_2B))
        self._run(
            self._sizes, self._numbers, self._pointers, ctypes.c_void_p(input_BW.data_ptr()),
            ctypes.c_int64(B), ctypes.c_int64(width - 2), *outputs, min(B, torch.get_num_threads()),
        )  # fmt: skip
        return logits_BV, logprob_BV, best_2B


def _sizes(model: Transformer, cache: PagedCache, options: AttentionOptions) -> ctypes.Array:
    c = model.config
    values = (
        c.num_layers, c.hidden_size, c.num_heads, c.qk_nope_dim, c.qk_rope_dim,
        c.kv_latent, c.v_dim, c.q_latent, c.num_experts, c.experts_per_token, c.expert_ffn_size, c.ffn_size,
        c.expert_ffn_size * c.num_shared_experts, c.index_heads, c.index_dim, options.top_k, c.vocab_size,
        cache.page_size,
    )  # fmt: skip
    return (ctypes.c_int64 * len(values))(*values)


def _layer(
    block: Block, cache: PagedCache, number: int, first_moe: int, sparse: bool
) -> list[torch.Tensor | None]:
    """The fields of ``Layer`` in ``decode.cpp``, in its order."""
    a, ffn = block.attention, block.ffn
    linear = [a.q_down, a.q_norm, a.q_up, a.kv_down, a.kv_norm, a.k_up, a.v_up, a.out]
    fields = [block.attention_norm.weight, *(part.weight for part in linear)]
    if sparse:
        i = a.indexer
        fields += [i.q_up.weight, i.key.weight, i.key_norm.weight, i.key_norm.bias, i.head_weight.weight]
    else:
        fields += [None] * 5
    fields.append(block.ffn_norm.weight)
    if isinstance(ffn, MoE):
        fields += [ffn.gate_up, ffn.down, ffn.router.weight, ffn.router.bias]
        fields += [ffn.shared.gate_up.weight, ffn.shared.down.weight]
    else:
        fields += [ffn.gate_up.weight, ffn.down.weight, *[None] * 4]
    fields += [cache.kv[number], cache.index_keys[number] if sparse else None]
    recorded = cache.routes is not None and isinstance(ffn, MoE)
    return [*fields, cache.routes[number - first_moe] if recorded else None]
