"""Layers that compute with integers, in the place of those with float weights.

    install(model, tensors)     # QuantizedTensors by the names of ``model.state_dict()``

The model then runs as before, in training's forward, in the engine and behind the server, on the kernels
``int8_linear`` and ``w4a8_experts``, and in the engine's native decode, which has its own. It cannot be
trained: nothing of an integer has a gradient.

M tokens, D hidden, E experts, F ffn width, G = 2F, K experts per token, I input and O output features.
"""

from collections.abc import Mapping

import torch
from torch import nn

from model.kernels.int8_linear.reference import pack_int4
from model.kernels.registry import int8_linear, w4a8_experts
from model.moe import MoE
from model.quantization.rounding import QuantizedTensor
from model.transformer import Transformer


class _Integers(nn.Module):
    """Keeps ``*scale`` buffers in float32, whatever dtype the model is moved to."""

    def _apply(self, fn, recurse=True):
        kept = {name: buffer for name, buffer in self.named_buffers() if name.endswith("scale")}
        super()._apply(fn, recurse)
        for name, scale in kept.items():
            setattr(self, name, scale.to(getattr(self, name).device))
        return self


class QuantizedLinear(_Integers):
    """A linear layer without bias. ``values``: int8 (O, I), or uint8 (O, I / 2) with two 4-bit values a byte;
    ``scale``: float32 (O, 1).
    """

    def __init__(self, weight: QuantizedTensor):
        super().__init__()
        self.register_buffer("values", _stored(weight))
        self.register_buffer("scale", weight.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., O) in x's dtype, from (..., I)."""
        return int8_linear(x.flatten(0, -2), self.values, self.scale).unflatten(0, x.shape[:-1])


class QuantizedExperts(_Integers):
    """The routed experts of a layer: ``gate_up`` (E, G, D) and ``down`` (E, D, F), stored as a linear
    layer's values are.
    """

    def __init__(self, gate_up: QuantizedTensor, down: QuantizedTensor):
        super().__init__()
        self.register_buffer("gate_up", _stored(gate_up))
        self.register_buffer("gate_up_scale", gate_up.scale)
        self.register_buffer("down", _stored(down))
        self.register_buffer("down_scale", down.scale)

    def forward(self, x_MD: torch.Tensor, index_MK: torch.Tensor, weight_MK: torch.Tensor) -> torch.Tensor:
        return w4a8_experts(
            x_MD, index_MK, weight_MK, self.gate_up, self.gate_up_scale, self.down, self.down_scale
        )


class QuantizedMoE(MoE):
    """An MoE layer with its router and shared expert, and other routed experts."""

    def __init__(self, layer: MoE, experts: QuantizedExperts):
        nn.Module.__init__(self)
        self.router, self.shared, self.quantized = layer.router, layer.shared, experts

    def train_quantized(self, bits: int) -> None:
        raise ValueError(
            "this model is quantised, and integers cannot be trained: train the float checkpoint"
        )

    def _routed(self, x_MD, index_MK, weight_MK) -> torch.Tensor:
        return self.quantized(x_MD, index_MK, weight_MK)


def install(model: Transformer, tensors: Mapping[str, QuantizedTensor]) -> None:
    """Replace the layers whose weights these are, in place; their float weights are let go.

    Raises ``ValueError`` for a name or shape that the model does not have, and for experts of which only one
    of ``gate_up`` and ``down`` is given; the model is as it was then.
    """
    own, device = model.state_dict(), model.embed.weight.device
    for name, tensor in tensors.items():
        if name not in own:
            raise ValueError(f"the model has no float weight {name} that the quantised one could replace")
        if own[name].shape != tensor.values.shape:
            shapes = f"{tuple(tensor.values.shape)}, and the model's is {tuple(own[name].shape)}"
            raise ValueError(f"the quantised {name} has shape {shapes}: quantise this model again")
    new: dict[str, nn.Module] = {}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        if isinstance(module, MoE):
            pair = [tensors.get(f"{path}.{part}") for part in ("gate_up", "down")]
            if None in pair:
                raise ValueError(f"of the experts {path} only {last} is quantised: quantise both matrices")
            new[path] = QuantizedMoE(module, QuantizedExperts(*pair).to(device))
        elif isinstance(module, nn.Linear) and last == "weight":
            new[path] = QuantizedLinear(tensor).to(device)
        else:
            raise ValueError(f"{name} is the weight of no layer that integers can compute")
    # A layer's shared expert is reached through it: what holds others comes first.
    for path in sorted(new, key=lambda path: path.count(".")):
        model.set_submodule(path, new[path])


def is_quantized(model: nn.Module) -> bool:
    """Whether any layer computes with integers."""
    return any(isinstance(module, _Integers) for module in model.modules())


def _stored(weight: QuantizedTensor) -> torch.Tensor:
    """Two values a byte where they fit and an even number of them makes a row."""
    packed = weight.bits <= 4 and weight.values.shape[-1] % 2 == 0
    return pack_int4(weight.values) if packed else weight.values
