"""A model's weights as the engine uses them, and those of another version: checked first, then copied in
place.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from model.hub import load_folder
from model.transformer import Transformer


def for_inference(model: Transformer) -> Transformer:
    """On CUDA with weights in bfloat16, as ``narrowed``: the kernels of experts take no other floats, and
    without them every pass waits for the device in every layer and none can be recorded as a graph.
    """
    return narrowed(model) if model.embed.weight.is_cuda else model


def narrowed(model: Transformer) -> Transformer:
    """The model, its weights now in bfloat16, but the routers' biases, whose small steps it would swallow."""
    biases = [router.bias for router in model.routers()]
    model.to(torch.bfloat16)
    for router, bias in zip(model.routers(), biases, strict=True):
        router.bias = bias
    return model


def state_for_inference(model: Transformer, device: str) -> dict[str, torch.Tensor]:
    """The model's state dict with the tensors that ``for_inference`` leaves on such a device ("cuda", "cpu"):
    what engines there keep, in half the bytes of float32.
    """
    state = model.state_dict()
    if device != "cuda":
        return state
    routers = set(model.routers())
    wide = {f"{name}.bias" for name, module in model.named_modules() if module in routers}
    return {
        name: tensor.bfloat16() if tensor.is_floating_point() and name not in wide else tensor
        for name, tensor in state.items()
    }


def checksum(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hex) of a state dict: names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_state(
    model: Transformer, source: str | Path | Mapping[str, torch.Tensor], expected: str | None
) -> Mapping[str, torch.Tensor]:
    """The state dict to load, known to fit. Raises ``ValueError`` where it does not, or is not the
    ``expected`` one.

    ``source``: a checkpoint folder (then also ``OSError``), or tensors under the names of
    ``model.state_dict()``.
    """
    state = source if isinstance(source, Mapping) else _folder_state(model, source)
    own = model.state_dict()
    if missing := sorted(own.keys() ^ state.keys()):
        where = "lack" if missing[0] in own else "have"
        raise ValueError(
            f"the weights {where} {missing[0]}, other than the model: give those of the same shape"
        )
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            shapes = f"{tuple(state[name].shape)}, the model's is {tuple(tensor.shape)}"
            raise ValueError(f"the weights' {name} has shape {shapes}: give weights of the same shape")
    if expected is not None and (found := checksum(state)) != expected.lower():
        raise ValueError(f"the weights' checksum is {found}, not {expected}: send them again")
    return state


@torch.no_grad()
def copy_state(model: Transformer, state: Mapping[str, torch.Tensor]) -> None:
    """Copy a fitting state dict into the model's own tensors, in their dtype and on their device: it is
    rounded there, which takes the host longer than the copy itself.
    """
    for name, tensor in model.state_dict().items():
        tensor.copy_(state[name].to(tensor.device))


def _folder_state(model: Transformer, folder: str | Path) -> Mapping[str, torch.Tensor]:
    found = load_folder(folder)
    if found.config != model.config:
        names = [name for name, value in found.config if value != getattr(model.config, name)]
        raise ValueError(
            f"{folder} differs from the loaded model in {', '.join(names)}: load it as another model"
        )
    return found.state_dict()
