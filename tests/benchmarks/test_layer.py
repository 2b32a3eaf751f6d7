"""The layer that benchmarks.layer times: with and without DSA it is the same layer."""

import torch

from benchmarks.layer import attention_layer, step
from model.attention.mla import AttentionOptions
from model.config import preset

CONFIG = preset("tiny", hidden_size=64, num_layers=1)


def gradients(attention, T, options):
    torch.manual_seed(1)  # the same input
    return step(attention, T, options)()


def test_the_layer_with_all_keys_selected_is_the_dense_one():
    torch.manual_seed(0)
    attention = attention_layer(CONFIG)
    dense = gradients(attention, 30, AttentionOptions("dense"))
    indexer = len(list(attention.indexer.parameters()))
    sparse = gradients(attention, 30, AttentionOptions("sparse", 30, indexer_loss=True))
    assert len(sparse) == len(dense) + indexer == 1 + len(list(attention.parameters()))
    for a, b in zip(dense, sparse, strict=False):
        torch.testing.assert_close(a, b)
    assert all(bool(g.any()) for g in sparse)


def test_fewer_keys_give_other_gradients():
    torch.manual_seed(0)
    attention = attention_layer(CONFIG)
    dense = gradients(attention, 30, AttentionOptions("dense"))
    sparse = gradients(attention, 30, AttentionOptions("sparse", 4, indexer_loss=True))
    assert not torch.allclose(dense[0], sparse[0], rtol=1e-3)
