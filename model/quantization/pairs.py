"""The places of a block where smoothing moves a factor, and moving it.

D hidden, O output and I input features, F ffn width, E experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from model.moe import MoE
from model.quantization.calibration import BlockInputs, Inputs
from model.quantization.folding import attention_folds, ffn_fold, scale_columns, scale_rows
from model.quantization.scheme import DENSE_BITS, Scheme
from model.transformer import Block


@dataclass(frozen=True)
class Pair:
    """A feature vector between who writes it and who reads it.

    writer: a norm's gain (I), or a weight (I, ..) whose rows are the features.
    readers: all weights (.., O, I) that read it, by name.
    judged: those of them, as matrices, whose quantised outputs decide.
    """

    name: str
    writer: torch.Tensor
    readers: dict[str, torch.Tensor]
    judged: list[torch.Tensor]
    inputs: Inputs
    bits: int


def norm_pairs(block: Block, prefix: str, found: BlockInputs, scheme: Scheme) -> Iterator[Pair]:
    """The attention's input and query latent. What reads the key-value latent is not quantised."""
    for name, each in attention_folds(block, prefix).items():
        judged = [key for key in each.consumers if scheme.bits(key)]
        if judged:
            yield Pair(
                name, each.norm.weight.detach(), each.consumers, [each.consumers[key] for key in judged],
                found.linear[judged[0]], DENSE_BITS,
            )  # fmt: skip


def inner_pairs(block: Block, prefix: str, found: BlockInputs, scheme: Scheme) -> Iterator[Pair]:
    """Values to the attention's output, and up to down in a dense or shared feed-forward layer."""
    attention, ffn, bits = block.attention, block.ffn, DENSE_BITS
    name, out = f"{prefix}attention.out.weight", attention.out.weight.detach()
    yield Pair(name, attention.v_up.weight.detach(), {name: out}, [out], found.linear[name], bits)
    dense, part = (ffn.shared, "ffn.shared") if isinstance(ffn, MoE) else (ffn, "ffn")
    name, down = f"{prefix}{part}.down.weight", dense.down.weight.detach()
    up = dense.gate_up.weight.detach()[dense.down.in_features :]
    yield Pair(name, up, {name: down}, [down], found.linear[name], bits)


def expert_pairs(block: Block, prefix: str, found: BlockInputs, scheme: Scheme) -> Iterator[Pair]:
    """Up to down of every routed expert."""
    if isinstance(block.ffn, MoE):
        gate_up, down = block.ffn.gate_up.detach(), block.ffn.down.detach()
        for expert, inputs in enumerate(found.experts[f"{prefix}ffn.down"]):
            name, up = f"{prefix}ffn.down[{expert}]", gate_up[expert, down.shape[-1] :]
            yield Pair(name, up, {name: down[expert]}, [down[expert]], inputs, scheme.expert_bits)


def ffn_pairs(block: Block, prefix: str, found: BlockInputs, scheme: Scheme) -> Iterator[Pair]:
    """The feed-forward's input, which GLM-5's recipe leaves alone: the router and all experts follow it."""
    [(name, each)] = ffn_fold(block, prefix).items()
    if isinstance(block.ffn, MoE):
        inputs = found.linear[f"{prefix}ffn.shared.gate_up.weight"]
        judged = block.ffn.gate_up.detach().flatten(0, 1)
        bits = scheme.expert_bits
    else:
        inputs, judged = found.linear[f"{prefix}ffn.gate_up.weight"], block.ffn.gate_up.weight.detach()
        bits = DENSE_BITS
    yield Pair(name, each.norm.weight.detach(), each.consumers, [judged], inputs, bits)


@torch.no_grad()
def move(pair: Pair, factor_I: torch.Tensor) -> None:
    """Divide the features by the factor and take it into the readers, in place."""
    if pair.writer.dim() == 1:
        pair.writer.copy_(pair.writer.double() / factor_I.double())
    else:
        scale_rows(pair.writer, 1 / factor_I.double())
    scale_columns(pair.readers, factor_I)
