"""A whole attention layer of GLM-5, forward and backward: DSA with its indexer's loss, and the same layer
with dense attention through cuDNN. Both share the projections of queries and latents, norms, rotary positions
and the output's projection; only DSA has the indexer's, and multiplies by k_up and v_up in absorbed form.

Times come from ``python -m benchmarks.kernels --only layer``.
"""

from collections.abc import Callable, Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.timer import Row

LENGTHS = (16_384, 65_536, 131_072)


def layer(bench, lengths=LENGTHS) -> Iterator[Row]:
    from model.attention.mla import AttentionOptions
    from model.config import preset

    config = preset("glm5")
    attention = attention_layer(config).to("cuda", torch.bfloat16)
    indexer = sum(p.numel() for p in attention.indexer.parameters())
    shared = sum(p.numel() for p in attention.parameters()) - indexer
    for T in lengths:
        pairs, seen = T * (T + 1) / 2, config.index_top_k
        selected = pairs if seen >= T else seen * (seen + 1) / 2 + (T - seen) * seen
        # The indexer's inputs get no gradient, so its weights cost two products where others cost three.
        core = selected * 2 * (64 * (1088 + 2752) + 5 * 32 * 128) + pairs * 2 * 32 * 128
        sparse = core + T * (6 * shared + 4 * indexer)
        dense = pairs * 64 * 256 * 2 * 7 + T * 6 * shared
        for name, options, flop in (
            ("DSA with loss", AttentionOptions("sparse", seen, indexer_loss=True), sparse),
            ("dense, cuDNN", AttentionOptions("dense"), dense),
        ):
            yield measured(bench, f"attention layer, {name}, {T} tokens", attention, T, options, flop / 1e12)


def measured(bench, work: str, attention, T: int, options, tflop: float) -> Row:
    """The row of that layer; where memory does not suffice, one that says so."""
    run = None
    try:
        run = step(attention, T, options)
        return bench.row(work, run, tflop, 0.0, brief=True)
    except torch.OutOfMemoryError:
        return {"work": work, "missing": "does not fit into the card's memory"}
    finally:
        del run
        torch.cuda.empty_cache()


def attention_layer(config):
    """One layer's attention with its indexer, the first of a model of that shape."""
    from model.attention.indexer import Indexer
    from model.attention.mla import MLA

    attention = MLA(config, 0)
    attention.indexer, attention.rope_base = Indexer(config), config.rope_base
    return attention


def step(attention, T: int, options) -> Callable[[], list[torch.Tensor]]:
    """Forward and backward of the layer on T random tokens; the call gives every gradient, the input's
    first.
    """
    from model.attention.rope import rope_table
    from model.attention.visibility import Visibility

    weight = attention.out.weight
    x = torch.randn(1, T, weight.shape[0], device=weight.device, dtype=weight.dtype, requires_grad=True)
    grad = torch.randn_like(x)
    view = Visibility.build(
        1, T, None, lambda position: rope_table(position, attention.rope_dim, attention.rope_base), x.device
    )
    dense = options.mode == "dense"
    used = [p for name, p in attention.named_parameters() if not (dense and name.startswith("indexer."))]

    def run():
        # Where both could compute it cuDNN's kernel is the quicker one; on a CPU there is one way only.
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if x.is_cuda else SDPBackend.MATH):
            out, signals = attention(x, view, options)
        losses = [out] if signals.indexer_kl is None else [out, signals.indexer_kl]
        return torch.autograd.grad(losses, [x, *used], [grad, *map(torch.ones_like, losses[1:])])

    return run
