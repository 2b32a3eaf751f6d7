"""Outliers: how strong they are, and putting stated ones into a checkpoint without changing its function.

Small models have few outliers, and then rotation and smoothing have nothing to show. What large ones have is
imitated by moving a factor from the weights that read a feature to what writes it: norm gains, value rows and
up-projection rows times the factor, the readers' columns divided by it. A power of two is exact.

N rows, I features.
"""

from dataclasses import dataclass

import torch

from model.quantization.folding import attention_folds, blocks_of, ffn_fold, scale_columns, scale_rows
from model.transformer import Block, Transformer


@dataclass(frozen=True)
class Outliers:
    """``share`` of the features of every place, at least one, are ``factor`` times as large.

    norms: after the three norms of each attention's and feed-forward's input (rotation undoes these);
    inner: attention's values and what every down projection reads (smoothing does).
    """

    factor: float = 16.0
    share: float = 0.02
    norms: bool = True
    inner: bool = True
    seed: int = 0


def kurtosis(x_NI: torch.Tensor) -> torch.Tensor:
    """Of every row: ``mean(x^4) / mean(x^2)^2`` over its features, without centring; 3 for a normal
    distribution, I for one feature alone, and 1 where all are of one size. 0 for a row of zeros.
    """
    square = x_NI.square()
    return square.square().mean(-1) / square.mean(-1).square().clamp_min(torch.finfo(x_NI.dtype).tiny)


@torch.no_grad()
def inject(model: Transformer, outliers: Outliers) -> None:
    """Put the outliers into every block, in place; logits stay the same up to rounding."""
    generator = torch.Generator().manual_seed(outliers.seed)

    def draw(features: int) -> torch.Tensor:
        count = max(1, round(outliers.share * features))
        factor_I = torch.ones(features, dtype=torch.float64)
        factor_I[torch.randperm(features, generator=generator)[:count]] = outliers.factor
        return factor_I

    for prefix, block in blocks_of(model).items():
        if outliers.norms:
            for each in (attention_folds(block, prefix) | ffn_fold(block, prefix)).values():
                factor_I = draw(len(each.norm.weight))
                each.norm.weight.mul_(factor_I.to(each.norm.weight.device))
                scale_columns(each.consumers, 1 / factor_I)
        if outliers.inner:
            for writer_OI, reader_OI in _inner_pairs(block):
                factor_I = draw(reader_OI.shape[-1])
                scale_rows(writer_OI, factor_I)
                scale_columns({"reader": reader_OI}, 1 / factor_I)


def _inner_pairs(block: Block) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights whose output rows are the next one's input features, nothing but a product between them."""
    attention, ffn = block.attention, block.ffn
    pairs = [(attention.v_up.weight.detach(), attention.out.weight.detach())]
    dense = ffn.shared if hasattr(ffn, "router") else ffn
    width = dense.down.in_features
    pairs.append((dense.gate_up.weight.detach()[width:], dense.down.weight.detach()))
    if hasattr(ffn, "router"):
        width = ffn.down.shape[-1]
        pairs.append((ffn.gate_up.detach()[:, width:], ffn.down.detach()))
    return pairs
