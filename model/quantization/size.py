"""Bytes that a model's tensors take on disk, computed from its shape alone.

    echo '{"config": {...}, "sizes": [{"scheme": {}, "float_bytes": 2}]}' | python -m model.quantization.size

prints the bytes under each of ``sizes``, as ``stored_bytes`` takes them; a scheme is its fields, or null.
"""

import json
import sys

import torch

from model.config import ModelConfig
from model.hub.weights import export_state
from model.quantization.packing import words
from model.quantization.scheme import Scheme
from model.transformer import Transformer

SCALE, SHAPE = 4, 16  # bytes of a row's float32 scale, and of the shape that a packed tensor has beside it


def stored_bytes(config: ModelConfig, scheme: Scheme | None = None, *, float_bytes: int = 2) -> int:
    """Bytes of all tensors of the checkpoint; file headers, some hundred bytes a tensor, are not counted.

    ``scheme``: None for an unquantised one. ``float_bytes``: of a number that stays as it is; 2 for bfloat16.
    """
    with torch.device("meta"):
        model = Transformer(config, indexer=True)
        if scheme is not None and scheme.rotation and model.mtp is not None:
            model.mtp.separate(model.head)
    total = 0
    for name, tensor in model.state_dict().items():
        bits = scheme.bits(name) if scheme is not None else None
        if bits is None:
            total += tensor.numel() * (4 if name.endswith("router.bias") else float_bytes)
            continue
        for _, part in export_state({name: tensor}, config):
            rows, columns = part.shape
            packed = rows * words(columns) * 4 + SHAPE if bits == 4 else rows * columns
            total += packed + rows * SCALE
    return total


def main() -> None:
    asked = json.load(sys.stdin)
    config = ModelConfig(**asked["config"])
    print(json.dumps([_size(config, **size) for size in asked["sizes"]]))


def _size(config: ModelConfig, scheme: dict | None, float_bytes: int) -> int:
    return stored_bytes(config, None if scheme is None else Scheme(**scheme), float_bytes=float_bytes)


if __name__ == "__main__":
    main()
