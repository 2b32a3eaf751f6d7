"""The int32 layout, against a definition written differently and against compressed-tensors itself."""

import pytest
import torch

from model.quantization.packing import pack, unpack, words


def test_the_lowest_four_bits_are_the_lowest_feature():
    packed = pack(torch.tensor([[-8, -7, 0, 7, 1, 2, 3, 4]], dtype=torch.int8))
    assert packed.dtype == torch.int32 and packed.item() & 0xFFFFFFFF == 0xCBA9F810


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 30])
def test_packing_is_the_sum_of_shifted_values_and_undone(columns):
    values = torch.randint(-8, 8, (5, columns), dtype=torch.int8)
    packed = pack(values)
    for row, stored in zip(values.tolist(), packed.tolist(), strict=True):
        for word in range(words(columns)):
            total = sum((q + 8) << 4 * n for n, q in enumerate(row[8 * word : 8 * word + 8]))
            assert stored[word] & 0xFFFFFFFF == total
    assert torch.equal(unpack(packed, columns), values)


def test_compressed_tensors_packs_the_same():
    pytest.importorskip("compressed_tensors")  # a name that has moved in it is no reason to skip
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    values = torch.randint(-8, 8, (6, 20), dtype=torch.int8)
    assert torch.equal(pack(values), pack_to_int32(values, 4))


def test_values_of_more_bits_are_refused():
    with pytest.raises(ValueError, match="outside of -8 to 7"):
        pack(torch.tensor([[8]], dtype=torch.int8))
