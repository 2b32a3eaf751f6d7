"""``decode_pass`` of ``decode.cpp`` over a model's own weights and cache.

B requests, P pages of a row, V vocabulary.
"""

import ctypes

import torch
from torch import nn

from model.attention.cache import PagedCache
from model.attention.mla import LATENT_NORM_EPS, AttentionOptions
from model.inference.native.build import NoNativeCode, library
from model.moe import MoE
from model.quantization.layers import QuantizedLinear, QuantizedMoE
from model.quantization.rounding import TOKEN_FLOOR
from model.transformer import Block, Transformer


class NativePass:
    """Reads the weights where they are: new ones that are copied in place count from the next pass on."""

    def __init__(self, model: Transformer, cache: PagedCache, options: AttentionOptions):
        """Raises ``NoNativeCode`` for a model that is not float32 on a CPU, and without a compiler."""
        if {p.dtype for p in model.parameters()} != {
            torch.float32
        } or model.embed.weight.device.type != "cpu":
            raise NoNativeCode(
                "native code decodes float32 models on a CPU: use another way, or convert the model"
            )
        self._run = library().decode_pass
        self._vocabulary = model.config.vocab_size
        tensors = [model.embed.weight, model.norm.weight, model.head.weight]
        for number, block in enumerate(model.blocks):
            first_moe = model.config.first_dense_layers
            tensors += _layer(block, cache, number, first_moe, options.mode == "sparse")
        if any(tensor is not None and not tensor.is_contiguous() for tensor in tensors):
            raise NoNativeCode("native code needs weights that are contiguous in memory: clone them")
        self._tensors = tensors  # their memory must not go before this object does
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        self._pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self._sizes = _sizes(model, cache, options)
        config = model.config
        numbers = (config.norm_eps, LATENT_NORM_EPS, config.routed_scale, config.rope_base, TOKEN_FLOOR)
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
    norms = [block.attention_norm, a.q_norm, a.kv_norm, a.k_up, a.v_up]
    fields = [part.weight for part in norms]
    for part in (a.q_down, a.q_up, a.kv_down, a.out):
        fields += _linear(part)
    if sparse:
        i = a.indexer
        fields += [i.key.weight, i.key_norm.weight, i.key_norm.bias, i.head_weight.weight, *_linear(i.q_up)]
    else:
        fields += [None] * 8
    fields.append(block.ffn_norm.weight)
    if isinstance(ffn, MoE):
        fields += [*_experts(ffn), ffn.router.weight, ffn.router.bias]
        fields += [*_linear(ffn.shared.gate_up), *_linear(ffn.shared.down)]
    else:
        fields += [*_linear(ffn.gate_up), *_linear(ffn.down), *[None] * 10]
    fields += [cache.kv[number], cache.index_keys[number] if sparse else None]
    recorded = cache.routes is not None and isinstance(ffn, MoE)
    return [*fields, cache.routes[number - first_moe] if recorded else None]


def _linear(layer: nn.Module) -> list[torch.Tensor | None]:
    if isinstance(layer, QuantizedLinear):
        return _integers(layer.values, layer.scale)
    return [layer.weight, None, None, None]


def _experts(layer: MoE) -> list[torch.Tensor | None]:
    if not isinstance(layer, QuantizedMoE):
        return [layer.gate_up, None, None, None, layer.down, None, None, None]
    own = layer.quantized
    return _integers(own.gate_up, own.gate_up_scale) + _integers(own.down, own.down_scale)


def _integers(values: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor | None]:
    """The fields of ``Matrix`` in ``integers.h``."""
    packed = values.dtype == torch.uint8
    return [None, None if packed else values, values if packed else None, scale]
