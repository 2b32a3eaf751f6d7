"""Folding norm gains into what reads the norm: ``W (g * x) = (W diag(g)) x``, afterwards the gain is 1.

Rotation needs it, since a gain does not commute with a rotation, and so does smoothing, whose own scales take
the gain's place. Whoever reads a norm must be in its list: the indexer and the router too, and the MTP block,
which gets a head of its own because its norm's gain is another than the trunk's. All arithmetic in float64.

D hidden, O output and I input features of a weight; leading dimensions (experts) are free.
"""

from dataclasses import dataclass

import torch

from model.norm import RMSNorm
from model.transformer import Block, Transformer


@dataclass(frozen=True)
class Fold:
    """A norm, and by name the weights (views (..., O, I)) that read its output."""

    norm: RMSNorm
    consumers: dict[str, torch.Tensor]


def attention_folds(block: Block, prefix: str) -> dict[str, Fold]:
    """The three norms of an attention: its input's, the query latent's and the key-value latent's."""
    attention, indexer = block.attention, block.attention.indexer
    names = ["attention.q_down", "attention.kv_down"]
    names += ["attention.indexer.key", "attention.indexer.head_weight"] if indexer else []
    q_names = ["attention.q_up"] + (["attention.indexer.q_up"] if indexer else [])
    return {
        f"{prefix}attention_norm": Fold(block.attention_norm, _weights(block, prefix, names)),
        f"{prefix}attention.q_norm": Fold(attention.q_norm, _weights(block, prefix, q_names)),
        f"{prefix}attention.kv_norm": Fold(
            attention.kv_norm, _weights(block, prefix, ["attention.k_up", "attention.v_up"])
        ),
    }


def ffn_fold(block: Block, prefix: str) -> dict[str, Fold]:
    """The feed-forward's norm: a dense layer's projection, or the router, all experts and the shared one."""
    if hasattr(block.ffn, "router"):
        consumers = _weights(block, prefix, ["ffn.router", "ffn.shared.gate_up"])
        consumers[f"{prefix}ffn.gate_up"] = block.ffn.gate_up.detach()
    else:
        consumers = _weights(block, prefix, ["ffn.gate_up"])
    return {f"{prefix}ffn_norm": Fold(block.ffn_norm, consumers)}


def folds(model: Transformer) -> dict[str, Fold]:
    """Every norm of a model whose MTP block, if any, has a head of its own (``MTP.separate``)."""
    found = {}
    for prefix, block in blocks_of(model).items():
        found |= attention_folds(block, prefix) | ffn_fold(block, prefix)
    found["norm"] = Fold(model.norm, {"head.weight": model.head.weight.detach()})
    if model.mtp is not None:
        mtp, D = model.mtp, model.config.hidden_size
        join = mtp.join.weight.detach()
        found["mtp.embed_norm"] = Fold(mtp.embed_norm, {"mtp.join.weight[embedding]": join[:, :D]})
        found["mtp.hidden_norm"] = Fold(mtp.hidden_norm, {"mtp.join.weight[hidden]": join[:, D:]})
        found["mtp.norm"] = Fold(mtp.norm, {"mtp.head.weight": mtp.head.weight.detach()})
    return found


def blocks_of(model: Transformer) -> dict[str, Block]:
    """Every block by the prefix of its names, the MTP block's last."""
    found = {f"blocks.{number}.": block for number, block in enumerate(model.blocks)}
    return found | ({"mtp.block.": model.mtp.block} if model.mtp else {})


@torch.no_grad()
def fold(found: dict[str, Fold]) -> None:
    """Move every gain into its consumers."""
    for each in found.values():
        scale_columns(each.consumers, each.norm.weight.double())
        each.norm.weight.fill_(1.0)


def scale_columns(weights: dict[str, torch.Tensor], factor_I: torch.Tensor) -> None:
    """``W diag(factor)`` in place."""
    for weight in weights.values():
        weight.copy_(weight.double() * factor_I.double().to(weight.device))


def scale_rows(weight_OI: torch.Tensor, factor_O: torch.Tensor) -> None:
    """``diag(factor) W`` in place."""
    weight_OI.copy_(weight_OI.double() * factor_O.double().to(weight_OI.device).unsqueeze(-1))


def _weights(block: Block, prefix: str, names: list[str]) -> dict[str, torch.Tensor]:
    return {f"{prefix}{n}.weight": block.get_submodule(n).weight.detach() for n in names}
