"""Quantising a model: rotate, smooth, search scales, round. The one entry point.

    floats, tensors, facts = quantize_model(model, batches, Scheme())

``floats`` is a copy of the model, rotated and smoothed, with the function of the original; ``tensors`` are
its weights as integers, by the names of its ``state_dict()``; ``layers.install`` makes it compute with them.
"""

import copy
import logging
from collections.abc import Iterable

import torch

from model.quantization.calibration import BlockInputs, Inputs, Walk, checked, measure_kurtosis, observe
from model.quantization.gptq import gptq
from model.quantization.layers import is_quantized
from model.quantization.pairs import expert_pairs, ffn_pairs, inner_pairs, move, norm_pairs
from model.quantization.rotation import rotate_model
from model.quantization.rounding import QuantizedTensor, minmax_scale, quantize_weight
from model.quantization.scales import clipped_scale, ssz_scale
from model.quantization.scheme import DENSE_BITS, QUERIES_AND_KEYS, Scheme
from model.quantization.smoothing import awq, flex, search, smoothquant
from model.transformer import Block, Transformer

log = logging.getLogger(__name__)

# Method: where it smooths, by which candidates, judged with which scales.
RECIPES = {
    "smoothquant": [
        (places, smoothquant, minmax_scale) for places in (norm_pairs, inner_pairs, ffn_pairs, expert_pairs)
    ],
    "awq": [(places, awq, minmax_scale) for places in (norm_pairs, inner_pairs, ffn_pairs, expert_pairs)],
    "flex_awq_ssz": [
        (expert_pairs, awq, ssz_scale),
        (norm_pairs, flex, minmax_scale),
        (inner_pairs, flex, minmax_scale),
    ],
}
EXPERT_SCALES = {"ssz": ssz_scale, "flex_awq_ssz": ssz_scale}  # min-max under the other methods
BY_INPUTS = ("awq", "gptq")  # whose rounding looks at what a matrix reads
AT_ONCE = 16  # experts that GPTQ rounds at once: bounds what it keeps in float64


@torch.no_grad()
def quantize_model(
    model: Transformer, batches: Iterable[torch.Tensor], scheme: Scheme
) -> tuple[Transformer, dict[str, QuantizedTensor], dict]:
    """Quantise a copy of the model.

    Args:
        model: float, not rotated yet; sparse attention is calibrated where it has an indexer.
        batches: calibration token ids (sequences, tokens), int64. May be empty for "minmax" and "ssz".
        scheme: see ``Scheme``.

    Returns:
        The copy, rotated and smoothed in float; its quantised weights; and facts for the record: the scheme,
        tokens, tokens per expert and the experts calibrated on all tokens of their layer ("pooled"), chosen
        exponents, matrices for which GPTQ fell back to rounding, kurtosis of inputs before and after.

    Raises:
        ValueError: for a model that is quantised or rotated already, an empty calibration set, tokens outside
            of the vocabulary, tokens that all choose the same experts, and weights or activations that are
            not finite.
    """
    if is_quantized(model):
        raise ValueError("this model is quantised already: quantise the float checkpoint that it comes from")
    batches = list(batches)
    if batches or scheme.needs_tokens:
        batches = checked(batches, model.config.vocab_size)
    _check_weights(model)
    floats = copy.deepcopy(model).eval().requires_grad_(False)
    narrow = _widen(floats)
    facts = {"scheme": scheme.facts(), "tokens": sum(batch.numel() for batch in batches)}
    if batches:
        facts["kurtosis"] = {"before": measure_kurtosis(floats, batches)}
    if scheme.rotation:
        rotate_model(floats, seed=scheme.seed)
    if batches:
        tensors = _calibrate(floats, batches, scheme, facts)
        facts["kurtosis"]["after"] = measure_kurtosis(floats, batches)
    else:
        tensors = _round_all(floats, scheme)
    _narrow(floats, narrow)
    return floats, tensors, facts


def _calibrate(
    model: Transformer, batches: list[torch.Tensor], scheme: Scheme, facts: dict
) -> dict[str, QuantizedTensor]:
    """Block after block: observe, smooth, round, and go on with what the rounded block gives."""
    facts |= {"expert_tokens": {}, "pooled": {}, "smoothing": {}, "rounded_to_nearest": []}
    walk, tensors = Walk(model, batches), {}
    for number, block in enumerate(model.blocks):
        prefix = f"blocks.{number}."
        hessians = scheme.method == "gptq"
        found = observe(walk, block, prefix, min_tokens=scheme.min_tokens, hessians=hessians)
        if found.counts:
            facts["expert_tokens"][f"{prefix}ffn"] = found.counts
            facts["pooled"][f"{prefix}ffn"] = found.pooled
        _smooth(block, prefix, found, scheme, facts)
        if scheme.method == "awq":  # clips by what the smoothed matrices read
            found = observe(walk, block, prefix, min_tokens=scheme.min_tokens)
        rounded = _round_block(block, prefix, found, scheme, facts)
        if block is not model.blocks[-1]:
            walk.go_on(walk.through(_with_weights(block, prefix, rounded)))
        tensors |= rounded
    return tensors


def _smooth(block: Block, prefix: str, found: BlockInputs, scheme: Scheme, facts: dict) -> None:
    for places, candidates, scale_of in RECIPES.get(scheme.method, []):
        for pair in places(block, prefix, found, scheme):
            best = search(candidates, pair.inputs, pair.judged, pair.bits, scale_of)
            move(pair, best.factor_I)
            facts["smoothing"][pair.name] = best.facts()


def _round_block(
    block: Block, prefix: str, found: BlockInputs, scheme: Scheme, facts: dict
) -> dict[str, QuantizedTensor]:
    rounded = {}
    for name, weight in _quantised(block, prefix, scheme):
        if scheme.method not in BY_INPUTS:
            rounded[name] = _round(name, weight, scheme)
        elif name in found.experts:
            rounded[name] = _fit(name, weight, found.experts[name], scheme.expert_bits, scheme, facts)
        else:
            one = _fit(name, weight.unsqueeze(0), [found.linear[name]], DENSE_BITS, scheme, facts)
            rounded[name] = QuantizedTensor(one.values[0], one.scale[0], one.bits)
    return rounded


def _fit(
    name: str, weight_EOI: torch.Tensor, inputs: list[Inputs], bits: int, scheme: Scheme, facts: dict
) -> QuantizedTensor:
    """Matrices of one shape, each rounded by what it reads."""
    if scheme.method == "awq":
        if QUERIES_AND_KEYS.fullmatch(name):
            return _nearest(weight_EOI, minmax_scale(weight_EOI, bits), bits)
        scales = [
            clipped_scale(weight, one.rows_NI, bits) for weight, one in zip(weight_EOI, inputs, strict=True)
        ]
        return _nearest(weight_EOI, torch.stack(scales), bits)
    parts = []
    for first in range(0, len(inputs), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        part, failed = gptq(weight_EOI[some], torch.stack([one.hessian_II for one in inputs[some]]), bits)
        parts.append(part)
        for number in failed.nonzero().flatten().tolist():
            which = f"{name}[{first + number}]" if len(inputs) > 1 else name
            log.warning("%s: its inputs' second moments have no Cholesky factor; rounded to nearest", which)
            facts["rounded_to_nearest"].append(which)
    values, scale = torch.cat([part.values for part in parts]), torch.cat([part.scale for part in parts])
    return QuantizedTensor(values, scale, bits)


def _round_all(model: Transformer, scheme: Scheme) -> dict[str, QuantizedTensor]:
    state = model.state_dict()
    return {name: _round(name, weight, scheme) for name, weight in state.items() if scheme.bits(name)}


def _round(name: str, weight: torch.Tensor, scheme: Scheme) -> QuantizedTensor:
    """Experts by the method's scales, everything else by min-max."""
    bits, scale_of = scheme.bits(name), minmax_scale
    if weight.dim() == 3:
        scale_of = EXPERT_SCALES.get(scheme.method, minmax_scale)
    return _nearest(weight, scale_of(weight, bits), bits)


def _nearest(weight: torch.Tensor, scale: torch.Tensor, bits: int) -> QuantizedTensor:
    return QuantizedTensor(quantize_weight(weight, scale, bits), scale, bits)


def _quantised(block: Block, prefix: str, scheme: Scheme) -> list[tuple[str, torch.Tensor]]:
    named = [(f"{prefix}{name}", weight.detach()) for name, weight in block.named_parameters()]
    return [(name, weight) for name, weight in named if scheme.bits(name)]


def _widen(model: Transformer) -> dict[str, torch.dtype]:
    """float32 in the place of narrower floats, so that what folds, rotates and smooths one after the other
    rounds to those once, at the end. Returns the dtypes that were.
    """
    dtypes = {}
    for name, value in _floats(model):
        dtypes[name] = value.dtype
        value.data = value.data.to(torch.promote_types(value.dtype, torch.float32))
    return dtypes


def _narrow(model: Transformer, dtypes: dict[str, torch.dtype]) -> None:
    """Back to these dtypes. What rotation gave the MTP block has its parent's."""
    for name, value in _floats(model):
        value.data = value.data.to(dtypes.get(name, dtypes["head.weight"]))


def _floats(model: Transformer) -> list[tuple[str, torch.Tensor]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, value) for name, value in named if value.is_floating_point()]


def _check_weights(model: Transformer) -> None:
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"the weight {name} holds NaN or infinity: choose another checkpoint")


def _with_weights(block: Block, prefix: str, tensors: dict[str, QuantizedTensor]) -> Block:
    """A copy of the block that computes in float with the rounded weights."""
    rounded = copy.deepcopy(block)
    for name, weight in rounded.named_parameters():
        if f"{prefix}{name}" in tensors:
            weight.copy_(tensors[f"{prefix}{name}"].dequantize(weight.dtype))
    return rounded
