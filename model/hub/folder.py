"""Reading and writing checkpoint folders."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from model.attention.indexer import Indexer
from model.config import ModelConfig
from model.hub.config import config_json, read_config, read_quantization
from model.hub.quantized import (
    config_of,
    decode,
    encode,
    exported_quantized,
    imported_quantized,
    stored_shapes,
)
from model.hub.record import check_recorded
from model.hub.weights import RENAMED, exported, imported, split_fused
from model.quantization.layers import install, is_quantized
from model.quantization.rounding import QuantizedTensor
from model.transformer import Transformer, initialise

WEIGHTS = "model.safetensors"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Computed with in float32 whatever the others are, so that they may be stored in it: norms and routers. The
# indexer's key norm is not.
IN_ANY_FLOAT = re.compile(r".*((?<!k_)norm|mlp\.gate|indexer\.weights_proj)\.\w+")


def save_folder(
    model: Transformer, folder: str | Path, quantized: Mapping[str, QuantizedTensor] | None = None
) -> None:
    """Write ``config.json`` and ``model.safetensors``, in the parameters' dtypes, into an existing folder.

    ``quantized``: of a float model the weights that are stored as integers, by the names of its
    ``state_dict()``; then config.json has a ``quantization_config``. Raises ``ValueError`` for a model that
    computes with integers already, and for quantised weights that no folder can hold.
    """
    if is_quantized(model):
        raise ValueError("this model computes with integers: save the float one with its quantised weights")
    folder, parts = Path(folder), dict(exported_quantized(quantized or {}, model.config))
    tensors = {name: tensor for name, tensor in exported(model)}
    if not model.has_indexer:
        tensors |= _fresh_indexers(model)
    found = config_json(model)
    if parts:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        found["quantization_config"] = config_of(parts, shapes, model.config)
    stored = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in parts}
    save_file(stored | encode(parts), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # the library leaves it to its owner alone
    text = json.dumps(found, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def load_folder(folder: str | Path, *, device: torch.device | str = "cpu") -> Transformer:
    """The model of a folder, in the stored dtypes; of a quantised one, a model that computes with integers.

    Raises ``FileNotFoundError`` where a file is missing, and ``ValueError`` with one sentence where
    config.json is not of this architecture, the tensors do not fit it (naming the first that differs), a
    file is damaged, or one of a quantised folder is not what the record beside it says.
    """
    folder = Path(folder)
    model, trained, plain, parts = _read(folder, str(device))
    try:
        state = imported(plain, model.config)
        weights = imported_quantized(folder, parts, model.config)
    except KeyError as error:
        raise ValueError(f"{folder} has {error} in another precision than what it belongs to") from error
    model.load_state_dict(state, assign=True, strict=not weights)
    if weights:
        install(model, weights)
    if not trained:
        model.drop_indexer()
    return model


def read_quantized(folder: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, QuantizedTensor]]:
    """A folder's weights by Hugging Face's names: those that stay as they are, and the quantised ones.

    Raises as ``load_folder``.
    """
    _, _, plain, parts = _read(Path(folder), "cpu")
    return plain, parts


def _read(folder: Path, device: str):
    """An empty model of the folder's shape, whether its indexer is trained, and all tensors, checked."""
    config, trained = read_config(folder)
    groups, files = read_quantization(folder), _files_of(folder)
    if groups:
        # Any bytes are valid integers, so that only a hash tells damage from weights. Float folders are let
        # through: hashing takes about 0.7 s a GB, engines open such folders again and again as training goes
        # on, and a stage verifies every file of those that it reads (pipeline/artifacts.py).
        check_recorded(folder, files)
    tensors = _read_tensors(folder, files, device)
    try:
        tensors = split_fused(tensors)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{folder} has stacks of experts that do not fit together; export it again"
        ) from error
    if not any(name.startswith(f"model.layers.{config.num_layers}.") for name in tensors):
        # transformers has no MTP block and leaves it out of what it writes.
        config = config.model_copy(update={"mtp_steps": 0})
    if max(config.num_layers, config.num_experts) > len(tensors):  # before as many are made
        raise ValueError(
            f"{folder} has {len(tensors)} tensors, and its config.json calls for {config.num_layers} layers "
            f"with {config.num_experts} experts"
        )
    rotated = f"model.layers.{config.num_layers}.rot.weight" in tensors
    model = _empty(folder, config, rotated)
    shapes = {name: tuple(tensor.shape) for name, tensor in exported(model)}
    stored = stored_shapes(shapes, groups) if groups else shapes
    # The MTP block of the released layout may bring its own copy of embedding and head, which are the
    # trunk's.
    copies = re.compile(rf"model\.layers\.{config.num_layers}\.(embed_tokens|shared_head\.head)\.weight")
    _check_head(folder, f"model.layers.{config.num_layers}.", stored, tensors)
    tensors = {name: t for name, t in tensors.items() if name in stored or not copies.fullmatch(name)}
    _check_shapes(folder, stored, tensors)
    plain, parts = decode(folder, tensors, shapes, groups) if groups else (tensors, {})
    _check_floats(folder, plain)
    return model, trained, plain, parts


def _empty(folder: Path, config: ModelConfig, rotated: bool) -> Transformer:
    try:
        with torch.device("meta"):
            model = Transformer(config, indexer=True)
            if model.mtp is not None and rotated:
                model.mtp.separate(model.head)
    except RuntimeError as error:  # more elements than a tensor can count
        raise ValueError(
            f"{folder / 'config.json'} has sizes that no tensor has; copy the folder again"
        ) from error
    return model


def _files_of(folder: Path) -> list[str]:
    """Names of the files that hold the tensors, all of which are there."""
    index = folder / "model.safetensors.index.json"
    names = [WEIGHTS]
    if index.exists():
        try:
            found = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            names = sorted({name + "" for name in found})  # nothing but text
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{index} does not say where tensors are; copy the checkpoint again") from None
    for name in names:
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing; copy the checkpoint again")
    return names


def _read_tensors(folder: Path, names: list[str], device: str) -> dict[str, torch.Tensor]:
    tensors = {}
    for name in names:
        try:
            with safe_open(folder / name, framework="pt", device=device) as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}
        except SafetensorError as error:
            raise ValueError(f"{folder / name} is damaged ({error}); copy the checkpoint again") from error
    return tensors


def _check_shapes(folder: Path, expected: dict, tensors: dict) -> None:
    for name, shape in expected.items():
        if name not in tensors:
            raise ValueError(f"{folder} has no tensor {name}, which its config.json calls for")
        if tuple(tensors[name].shape) != shape:
            found = tuple(tensors[name].shape)
            raise ValueError(
                f"{folder}: tensor {name} has shape {found}, and its config.json calls for {shape}"
            )
    for name in tensors:
        if name not in expected:
            raise ValueError(f"{folder} has a tensor {name} that its config.json does not call for")


def _check_head(folder: Path, mtp: str, expected: dict, tensors: dict) -> None:
    """A head of the MTP block that is not the trunk's belongs to a rotated model, with its correction."""
    name, trunk = f"{mtp}shared_head.head.weight", tensors.get("lm_head.weight")
    if name in expected or name not in tensors or trunk is None or torch.equal(tensors[name], trunk):
        return
    raise ValueError(
        f"{folder} has no tensor {mtp}rot.weight, which goes with {name} of a rotated model; export it again"
    )


def _check_floats(folder: Path, tensors: dict) -> None:
    first = tensors["model.embed_tokens.weight"].dtype
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{folder}: {name} is {tensor.dtype} where a float is called for")
        if tensor.dtype != first and not IN_ANY_FLOAT.fullmatch(name):
            raise ValueError(
                f"{folder}: {name} is {tensor.dtype} and embed_tokens.weight {first}: export the folder "
                "again, all in one dtype"
            )
        if not tensor.isfinite().all():
            raise ValueError(f"{folder}: {name} holds NaN or infinity; export the folder again")


def _fresh_indexers(model: Transformer) -> dict[str, torch.Tensor]:
    """Newly initialised indexer weights for every layer of a model that has none."""
    tensors = {}
    for number in range(len(model.attentions())):
        indexer = Indexer(model.config).to(model.embed.weight.dtype)
        initialise(indexer, model.config.init_std, seed=number)
        for name, value in indexer.state_dict().items():
            tensors[f"model.layers.{number}." + RENAMED[f"attention.indexer.{name}"]] = value
    return tensors
