"""What quantisation changes: likelihoods, selected keys, chosen experts, accepted drafts.

    before = measure(model, rows, batches, prompts)
    after = measure(quantized, rows, batches, prompts)
    agreement(before, after)            # {"topk_overlap": 0.98, "router_agreement": 0.97, "kl": 0.004}

B batch, T queries, K selected keys or experts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from model.attention.indexer import Indexer
from model.inference.engine import Engine
from model.inference.generate import score
from model.inference.request import SamplingParams
from model.kernels.registry import indexer_topk
from model.transformer import Transformer

RESAMPLES = 1000


@dataclass(frozen=True)
class Row:
    """A document. ``counted``: which tokens' likelihood counts; all but the first where left out."""

    ids: list[int]
    counted: list[bool] | None = None


@dataclass
class Measured:
    nats: dict[str, np.ndarray]  # a value a row and group, the sum over its counted tokens
    tokens: dict[str, np.ndarray]  # how many those are
    routes: list[torch.Tensor] = field(default_factory=list)  # (M, K) a MoE layer and batch, as they ran
    selections: list[torch.Tensor] = field(default_factory=list)  # (B, T, K) a layer and batch
    hidden: list[torch.Tensor] = field(default_factory=list)  # (B, T, D) a batch, what the head reads
    head_VD: torch.Tensor | None = None
    accept_length: float = 0.0  # tokens of a pass with drafts; 0 without an MTP block

    def perplexity(self, group: str) -> float:
        return float(np.exp(self.nats[group].sum() / self.tokens[group].sum()))


def measure(
    model: Transformer,
    rows: Mapping[str, Sequence[Row]],
    batches: Sequence[torch.Tensor],
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int = 32,
) -> Measured:
    """Measure a model, float or quantised, under the attention that it runs with.

    Args:
        rows: groups of documents, for perplexity.
        batches: int64 (B, T), one document a row, whose selections and routes are kept.
        prompts: continued greedily with drafts of the MTP block, ``new_tokens`` each.
    """
    mode = "sparse" if model.has_indexer else "dense"
    nats, tokens = {}, {}
    for name, group in rows.items():
        found = score(model, [row.ids for row in group], attention=mode)
        counted = [np.array(row.counted or [True] * len(row.ids))[1:] for row in group]
        nats[name] = np.array([-v[c].sum(dtype=np.float64) for v, c in zip(found, counted, strict=True)])
        tokens[name] = np.array([int(c.sum()) for c in counted])
    measured = Measured(nats, tokens, head_VD=model.head.weight)
    with torch.inference_mode(), _watched(model, measured):
        for batch in batches:
            out = model(batch.to(model.embed.weight.device), attention=mode)
            measured.hidden.append(out.hidden_BTD)
    if model.mtp is not None and prompts:
        engine = Engine(model, draft_steps=model.config.mtp_steps)
        engine.generate(prompts, SamplingParams(max_new_tokens=new_tokens, temperature=0.0))
        measured.accept_length = engine.stats()["accept_length"]
    return measured


def perplexity_change(before: Measured, after: Measured, group: str) -> tuple[float, float, float]:
    """By how much of itself the perplexity rose, and a 95 % interval over the rows (bootstrap, paired)."""
    difference, tokens = after.nats[group] - before.nats[group], before.tokens[group]
    picked = np.random.default_rng(0).integers(0, len(tokens), (RESAMPLES, len(tokens)))
    changes = np.expm1(difference[picked].sum(1) / tokens[picked].sum(1))
    low, high = np.quantile(changes, [0.025, 0.975])
    return float(np.expm1(difference.sum() / tokens.sum())), float(low), float(high)


def agreement(before: Measured, after: Measured) -> dict[str, float]:
    """Shares of the experts and of the selected keys that stay the same, over all layers, tokens and queries
    (only queries count that see more keys than they may select), and the mean KL divergence in nats of what
    the model says next from what it said before.
    """
    values = {"router_agreement": _shared(before.routes, after.routes), "kl": _divergence(before, after)}
    if before.selections:
        values["topk_overlap"] = _shared(before.selections, after.selections)
    return values


@torch.inference_mode()
def _divergence(before: Measured, after: Measured) -> float:
    total, count = 0.0, 0
    for hidden, other in zip(before.hidden, after.hidden, strict=True):
        for a_TD, b_TD in zip(hidden, other, strict=True):
            said = F.linear(a_TD, before.head_VD).float().log_softmax(-1)
            says = F.linear(b_TD, after.head_VD).float().log_softmax(-1)
            total += float(F.kl_div(says, said, log_target=True, reduction="sum"))
            count += len(a_TD)
    return total / count


def _shared(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """Share of a row's elements that the other's row of the same place holds too."""
    same = total = 0
    for a, b in zip(before, after, strict=True):
        a, b = a.sort(-1).values, b.sort(-1).values
        place = torch.searchsorted(b, a).clamp_max(b.shape[-1] - 1)
        same += int((b.gather(-1, place) == a).sum())
        total += a.numel()
    return same / total if total else 1.0


@contextmanager
def _watched(model: Transformer, measured: Measured) -> Iterator[None]:
    """Keep the trunk's routes and selections of all passes meanwhile."""
    top_k = model.config.index_top_k
    trunk = model.routers()[: model.config.num_layers - model.config.first_dense_layers]
    hooks = [
        router.register_forward_hook(lambda _, __, out: measured.routes.append(out[0])) for router in trunk
    ]

    def keep(_: Indexer, __, out) -> None:
        B, T = out[0].shape[:2]
        if T <= top_k:
            return
        stop_BT = torch.arange(1, T + 1, dtype=torch.int32, device=out[0].device).expand(B, T)
        index_BTK = indexer_topk(*out, torch.zeros_like(stop_BT), stop_BT.contiguous(), top_k)
        measured.selections.append(index_BTK[:, top_k:].contiguous())

    if model.has_indexer:
        hooks += [block.attention.indexer.register_forward_hook(keep) for block in model.blocks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
