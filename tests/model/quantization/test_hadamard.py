"""Hadamard matrices of many orders, and the orthogonal matrices made of them."""

import pytest
import torch

from model.quantization.hadamard import block_hadamard, hadamard, largest_block, shifted_block_hadamard

# Powers of two, Paley's first kind (12, 20, 24, 44, 60), his second (28, 36, 76), and their doublings.
ORDERS = [1, 2, 4, 8, 64, 12, 48, 96, 384, 20, 40, 160, 24, 44, 60, 28, 56, 36, 76]


@pytest.mark.parametrize("order", ORDERS)
def test_entries_are_signs_and_rows_are_orthogonal(order):
    H = hadamard(order)
    assert H.abs().eq(1).all()
    assert torch.equal(H @ H.T, order * torch.eye(order, dtype=torch.float64))


@pytest.mark.parametrize("order", [3, 6, 18, 92])
def test_orders_without_a_construction(order):
    with pytest.raises(ValueError, match=f"no Hadamard matrix of order {order}"):
        hadamard(order)


def test_glm5_sizes_have_whole_matrices():
    assert [largest_block(n) for n in (6144, 2048, 512, 256)] == [6144, 2048, 512, 256]
    assert [largest_block(n) for n in (10, 9, 30, 92)] == [2, 1, 2, 4]


@pytest.mark.parametrize("make", [block_hadamard, shifted_block_hadamard])
@pytest.mark.parametrize("size", [64, 96, 40, 10, 7])
def test_orthogonal_and_with_signs_of_its_seed(make, size):
    Q = make(size, torch.Generator().manual_seed(3))
    torch.testing.assert_close(Q @ Q.T, torch.eye(size, dtype=torch.float64), atol=1e-12, rtol=0)
    assert torch.equal(Q, make(size, torch.Generator().manual_seed(3)))
    assert not torch.equal(Q, make(size, torch.Generator().manual_seed(4)))


@pytest.mark.parametrize("size", [8, 12, 24, 92])
def test_shifted_blocks_always_mix(size):
    """Blocks of one feature would turn nothing."""
    Q = shifted_block_hadamard(size, torch.Generator().manual_seed(0))
    assert (Q.abs() > 1e-9).sum(0).min() >= 2


def test_blocks_stay_apart_and_shifted_blocks_mix():
    plain = block_hadamard(32, torch.Generator().manual_seed(0), block=8)
    assert plain[:8, 8:].eq(0).all() and plain[:8, :8].abs().allclose(torch.tensor(8.0).double() ** -0.5)
    shifted = shifted_block_hadamard(32, torch.Generator().manual_seed(0), block=8)
    # A block reaches half of each neighbour: 16 features, two blocks' worth.
    reached = shifted[:8].abs().amax(0) > 1e-9
    assert reached.sum() == 16 and not torch.equal(reached, torch.arange(32) < 16)
    with pytest.raises(ValueError, match="blocks of 12 do not divide 32"):
        block_hadamard(32, torch.Generator(), block=12)
