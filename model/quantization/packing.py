"""Eight 4-bit values in one int32: the layout that compressed-tensors calls ``pack-quantized``.

A value q of -8..7 is stored as q + 8. The lowest four bits hold the lowest input feature; a row that ends
inside a word is filled with zero bits. O output features, I input features, W = ceil(I / 8) words.
"""

import torch

PER_WORD = 8


def words(columns: int) -> int:
    """int32 words of a row of that many 4-bit values."""
    return -(-columns // PER_WORD)


def pack(values_OI: torch.Tensor) -> torch.Tensor:
    """int32 (O, W) of int8 values (O, I). ``ValueError`` for a value that 4 bits cannot hold."""
    if values_OI.numel() and not (-8 <= int(values_OI.min()) and int(values_OI.max()) <= 7):
        raise ValueError("a value outside of -8 to 7 does not fit into 4 bits: quantise the weight to 4 bits")
    rows, columns = values_OI.shape
    nibbles = torch.zeros(rows, words(columns) * PER_WORD, dtype=torch.uint8, device=values_OI.device)
    nibbles[:, :columns] = (values_OI + 8).to(torch.uint8)
    bytes_ = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    return bytes_.contiguous().view(torch.int32)  # little-endian, as safetensors


def unpack(packed_OW: torch.Tensor, columns: int) -> torch.Tensor:
    """int8 (O, ``columns``) of packed words."""
    bytes_ = packed_OW.contiguous().view(torch.uint8)
    nibbles = torch.stack([bytes_ & 15, bytes_ >> 4], -1).flatten(1)
    return nibbles[:, :columns].to(torch.int8) - 8
