"""What one micro-batch contributes to a training step: next-token, MTP, balance and indexer losses.

    losses = training_losses(model, tokens_BT, target_BT, start_BT=starts, mtp=True)
    total = losses.lm + 0.3 * losses.mtp + 1e-4 * losses.balance

``target_BT`` holds at t the token to predict there (``tokens[t + 1]`` in pre-training) or ``IGNORE`` (-100)
where nothing is learned: prompt and tool tokens, padding, and the last token of a packed document. B batch, T
tokens, L layers.
"""

from dataclasses import dataclass

import torch

from model.attention.mla import Mode
from model.kernels.cross_entropy.reference import IGNORE
from model.kernels.registry import linear_cross_entropy
from model.mtp import ahead
from model.transformer import Transformer

__all__ = ["IGNORE", "Losses", "indexer_loss", "language_loss", "next_targets", "training_losses"]


@dataclass
class Losses:
    """Scalars carry gradients; a term that was not asked for is a zero without one."""

    lm: torch.Tensor  # nats per token, mean over the targets
    token_BT: torch.Tensor  # nats of each target, 0 where ignored
    mtp: torch.Tensor  # mean over the steps of their mean over targets (DeepSeek-V3 eq. 25)
    balance: torch.Tensor
    indexer_kl: torch.Tensor  # nats, mean over layers, the MTP block counted as one
    indexer_kl_L: torch.Tensor | None  # the trunk's layers, detached
    load_LE: torch.Tensor  # for ``Transformer.update_balance``, after summing over micro-batches and ranks


def next_targets(tokens_BT: torch.Tensor, start_BT: torch.Tensor | None = None) -> torch.Tensor:
    """The next token of the same document at every position, ``IGNORE`` at a document's last one."""
    start = torch.zeros_like(tokens_BT) if start_BT is None else start_BT.expand(tokens_BT.shape)
    return ahead(tokens_BT, 1, start, fill=IGNORE)


def language_loss(
    model: Transformer, hidden_BTD: torch.Tensor, target_BT: torch.Tensor, *, draft: bool = False
) -> torch.Tensor:
    """``-log p(target)`` at every position, float32 (B, T), 0 where ignored; ``draft``: of an MTP state."""
    head = model.draft_head if draft else model.head
    loss_M = linear_cross_entropy(hidden_BTD.flatten(0, 1), head.weight, target_BT.flatten())
    return loss_M.view(target_BT.shape)


def training_losses(
    model: Transformer,
    tokens_BT: torch.Tensor,
    target_BT: torch.Tensor,
    *,
    start_BT: torch.Tensor | None = None,
    attention: Mode = "dense",
    top_k: int | None = None,
    indexer_loss: bool = False,
    mtp: bool = False,
) -> Losses:
    """Forward pass and losses of one micro-batch.

    Args:
        tokens_BT, target_BT: int64; see the module's docstring.
        start_BT: start of each token's document in its row; left out for one document per row.
        attention, top_k: as in ``Transformer.forward``.
        indexer_loss: also compute the KL of every layer's indexer: warm-up's under dense attention,
            adaptation's under sparse.
        mtp: also compute the MTP loss.
    """
    out = model(tokens_BT, start_BT=start_BT, attention=attention, top_k=top_k, indexer_loss=indexer_loss)
    token_BT = language_loss(model, out.hidden_BTD, target_BT)
    losses = Losses(
        lm=_mean(token_BT, target_BT),
        token_BT=token_BT.detach(),
        mtp=token_BT.new_zeros(()),
        balance=out.balance,
        indexer_kl=out.indexer_kl_L.mean() if indexer_loss else token_BT.new_zeros(()),
        indexer_kl_L=out.indexer_kl_L.detach() if indexer_loss else None,
        load_LE=out.load_LE,
    )
    if model.mtp is not None and mtp:
        _add_mtp(model, losses, tokens_BT, target_BT, out.hidden_BTD, start_BT, attention)
    return losses


def indexer_loss(
    model: Transformer, tokens_BT: torch.Tensor, *, start_BT: torch.Tensor | None = None, mtp: bool
) -> torch.Tensor:
    """KL of every layer's indexer to dense attention and nothing else, a scalar in nats: warm-up's loss.

    ``mtp``: the MTP block's indexer too.
    """
    out = model(tokens_BT, start_BT=start_BT, indexer_loss=True)
    loss = out.indexer_kl_L.mean()
    if model.mtp is None or not mtp:
        return loss
    _, signals = model.mtp_states(
        tokens_BT, out.hidden_BTD, steps=model.config.mtp_steps, start_BT=start_BT, indexer_loss=True
    )
    return _with_block(loss, signals, model.config.num_layers)


def _with_block(trunk_kl: torch.Tensor, signals, layers: int) -> torch.Tensor:
    """The MTP block counts as one layer more, the mean over its steps."""
    block = torch.stack([s.attention.indexer_kl for s in signals]).mean()
    return (trunk_kl * layers + block) / (layers + 1)


def _add_mtp(model, losses: Losses, tokens_BT, target_BT, hidden_BTD, start_BT, attention: Mode) -> None:
    """The MTP loss, and the MTP block's share in load, balance and indexer KL."""
    with_indexer = losses.indexer_kl_L is not None
    states, signals = model.mtp_states(
        tokens_BT,
        hidden_BTD,
        steps=model.config.mtp_steps,
        start_BT=start_BT,
        attention=attention,
        indexer_loss=with_indexer,
    )
    start = torch.zeros_like(tokens_BT) if start_BT is None else start_BT.expand(tokens_BT.shape)
    steps = []
    for k, state in enumerate(states, start=1):
        target = ahead(target_BT, k, start, fill=IGNORE)
        steps.append(_mean(language_loss(model, state, target, draft=True), target))
    losses.mtp = torch.stack(steps).mean()
    routers = [s.router for s in signals if s.router is not None]
    if routers:
        losses.load_LE[-1] = sum(r.load_E for r in routers)
        moe = len(losses.load_LE)
        block = torch.stack([r.balance for r in routers]).mean()
        losses.balance = (losses.balance * (moe - 1) + block) / moe
    if with_indexer:
        losses.indexer_kl = _with_block(losses.indexer_kl, signals, model.config.num_layers)


def _mean(loss_BT: torch.Tensor, target_BT: torch.Tensor) -> torch.Tensor:
    return loss_BT.sum() / (target_BT != IGNORE).sum().clamp(min=1)
