"""Quantised weights in a folder, as compressed-tensors stores them, from and to ``QuantizedTensor``.

A 4-bit weight is ``weight_packed`` (int32), ``weight_scale`` and ``weight_shape``; an 8-bit one ``weight``
(int8) and ``weight_scale`` (O, 1). Which is which stands in ``quantization_config`` of config.json. Experts
are apart here, as in Hugging Face's layout, and stacked in the model. O output and I input features.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from model.config import ModelConfig
from model.hub.weights import export_state, imported
from model.quantization.export import Groups, quantization_config
from model.quantization.packing import pack, unpack, words
from model.quantization.rounding import QuantizedTensor

# Two-dimensional weights that belong to no linear layer.
NOT_LINEAR = ("embed_tokens.weight", "mlp.gate.weight")


def exported_quantized(
    tensors: Mapping[str, QuantizedTensor], config: ModelConfig
) -> Iterator[tuple[str, QuantizedTensor]]:
    """Hugging Face's weight names with their parts of our quantised weights, which have our names.

    Raises ``ValueError`` for a name that is no weight of the model, or is one whose layout on disk is mixed
    from several (``kv_b_proj``).
    """
    for ours, weight in tensors.items():
        if ".attention.k_up." in ours or ".attention.v_up." in ours:
            raise ValueError(f"{ours} is a part of kv_b_proj, which exports leave unquantised")
        values = dict(export_state({ours: weight.values}, config))
        if not values:
            raise ValueError(f"{ours} is no weight of this model: its quantised weights are another model's")
        for theirs, scale in export_state({ours: weight.scale}, config):
            yield theirs, QuantizedTensor(values[theirs], scale, weight.bits)


def encode(parts: Mapping[str, QuantizedTensor]) -> dict[str, torch.Tensor]:
    """The tensors to store of quantised weights with Hugging Face's names."""
    stored = {}
    for name, part in parts.items():
        if part.bits == 4:
            stored[f"{name}_packed"] = pack(part.values)
            stored[f"{name}_shape"] = torch.tensor(part.values.shape)
        else:
            stored[name] = part.values.contiguous()
        stored[f"{name}_scale"] = part.scale.contiguous()
    return stored


def config_of(
    parts: Mapping[str, QuantizedTensor], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> dict:
    """``quantization_config`` of a folder. ``shapes``: of all weights, by Hugging Face's names."""
    bits = {name.removesuffix(".weight"): part.bits for name, part in parts.items()}
    linear = [name.removesuffix(".weight") for name, shape in shapes.items() if _is_linear(name, shape)]
    routers = [name.removesuffix(".weight") for name in shapes if name.endswith("mlp.gate.weight")]
    return quantization_config(bits, [*linear, *routers], config.num_layers)


def stored_shapes(shapes: Mapping[str, tuple[int, ...]], groups: Groups) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a quantised folder, by name. ``shapes``: as if nothing were quantised."""
    stored = {}
    for name, shape in shapes.items():
        bits = _bits_of(name, shape, groups)
        if bits is not None:
            stored[f"{name}_scale"] = (shape[0], 1)
        if bits == 4:
            stored[f"{name}_packed"] = (shape[0], words(shape[1]))
            stored[f"{name}_shape"] = (2,)
        else:
            stored[name] = shape
    return stored


def decode(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    groups: Groups,
) -> tuple[dict[str, torch.Tensor], dict[str, QuantizedTensor]]:
    """What stays as it is and what is quantised, both with Hugging Face's names.

    The tensors have the shapes of ``stored_shapes``. Raises ``ValueError`` for wrong dtypes, for scales that
    are no positive numbers and for a ``weight_shape`` that differs.
    """
    plain, parts = {}, {}
    for name, shape in shapes.items():
        bits = _bits_of(name, shape, groups)
        if bits is None:
            if name in tensors:
                plain[name] = tensors[name]
            continue
        values = tensors[name if bits == 8 else f"{name}_packed"]
        expected = torch.int8 if bits == 8 else torch.int32
        if values.dtype != expected:
            raise ValueError(f"{folder}: {name} is {values.dtype} where {expected} is called for")
        if bits == 4:
            if tuple(tensors[f"{name}_shape"].tolist()) != shape:
                found = tensors[f"{name}_shape"].tolist()
                raise ValueError(f"{folder}: {name}_shape says {found}, and config.json {list(shape)}")
            values = unpack(values, shape[1])
        parts[name] = QuantizedTensor(values, _scale(folder, f"{name}_scale", tensors), bits)
    return plain, parts


def imported_quantized(
    folder: Path, parts: Mapping[str, QuantizedTensor], config: ModelConfig
) -> dict[str, QuantizedTensor]:
    """Our names, gate and up projections and experts stacked. Raises ``ValueError`` where parts of one weight
    have different bits.
    """
    values = imported({name: part.values for name, part in parts.items()}, config)
    scales = imported({name: part.scale for name, part in parts.items()}, config)
    bits = imported({name: torch.full_like(part.scale, part.bits) for name, part in parts.items()}, config)
    weights = {}
    for name, each in bits.items():
        found = each.unique().int().tolist()
        if len(found) > 1:
            raise ValueError(f"{folder}: the parts of {name} have {found} bits, and one number is called for")
        weights[name] = QuantizedTensor(values[name], scales[name], found[0])
    return weights


def _scale(folder: Path, name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    scale = tensors[name].float()  # first: a float64 may be none any more in float32
    if not tensors[name].is_floating_point() or not bool((scale.isfinite() & (scale > 0)).all()):
        raise ValueError(f"{folder}: {name} holds what is no positive number; export the folder again")
    return scale


def _bits_of(name: str, shape: tuple[int, ...], groups: Groups) -> int | None:
    return groups.bits_of(name.removesuffix(".weight")) if _is_linear(name, shape) else None


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and name.endswith(".weight") and not name.endswith(NOT_LINEAR)
