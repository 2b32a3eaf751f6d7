"""What the inputs of every quantised matrix look like on calibration tokens, layer by layer.

A block is observed with what the blocks before it, already quantised, pass on. For experts the inputs are
those of the tokens that chose them, with counts; an expert that fewer than ``min_tokens`` chose is given all
tokens of its layer instead ("pooled"; its down projection those that are kept as rows), since a handful says
nothing about a matrix.

N rows (tokens) kept, D hidden, I input features, F ffn width, E experts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from model.attention.mla import AttentionOptions
from model.attention.visibility import Visibility
from model.moe import MoE, Router
from model.quantization.outliers import kurtosis
from model.transformer import Block, Transformer

ROWS = 1024  # inputs of a matrix that are kept as they are


class Inputs:
    """Statistics of one matrix's inputs: all tokens in the moments, some of them as rows.

    hessian_II: sum of ``x x^T``, float64; None where it is not asked for.
    largest_I: the largest ``|x|``, float32.
    """

    def __init__(
        self, features: int, keep: int = ROWS, *, hessian: bool = False, device: torch.device | str = "cpu"
    ):
        self.tokens = 0
        wide = dict(dtype=torch.float64, device=device)
        self.hessian_II = torch.zeros(features, features, **wide) if hessian else None
        self.largest_I = torch.zeros(features, device=device)
        self._sum_I = torch.zeros(features, **wide)  # of |x|
        self._kurtosis = 0.0
        self._keep, self._rows = keep, []

    def add(self, x_NI: torch.Tensor) -> None:
        x_NI = x_NI.detach().float()
        if not len(x_NI):
            return
        self.tokens += len(x_NI)
        if self.hessian_II is not None:
            self.hessian_II += x_NI.T @ x_NI
        size_NI = x_NI.abs()
        self.largest_I = torch.maximum(self.largest_I, size_NI.amax(0))
        self._sum_I += size_NI.sum(0)
        self._kurtosis += float(kurtosis(x_NI).sum())
        step = max(1, math.ceil(len(x_NI) / self._keep))
        self._rows.append(x_NI[::step])

    @property
    def mean_I(self) -> torch.Tensor:
        """Mean of |x|, float32."""
        return (self._sum_I / max(self.tokens, 1)).float()

    @property
    def kurtosis(self) -> float:
        """Mean over tokens of ``kurtosis``."""
        return self._kurtosis / max(self.tokens, 1)

    @property
    def rows_NI(self) -> torch.Tensor:
        """float32; evenly chosen where there were more than are kept."""
        rows = torch.cat(self._rows) if self._rows else self._sum_I.new_zeros(0, len(self._sum_I)).float()
        step = max(1, math.ceil(len(rows) / self._keep))
        return rows[::step]


@dataclass
class BlockInputs:
    """Of one block: by its weights' names, and for experts a list by expert."""

    hessians: bool
    outputs: list[torch.Tensor] = field(default_factory=list)  # the states behind the block
    linear: dict[str, Inputs] = field(default_factory=dict)
    experts: dict[str, list[Inputs]] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)  # tokens that chose each expert
    pooled: list[int] = field(default_factory=list)  # experts that are given all tokens of the layer

    def inputs(self, features: int, device: torch.device) -> Inputs:
        return Inputs(features, hessian=self.hessians, device=device)


def checked(batches: Iterable[torch.Tensor], vocabulary: int) -> list[torch.Tensor]:
    """The batches as a list. Raises ``ValueError`` where there is no token, or one outside the vocabulary."""
    found = list(batches)
    if not sum(batch.numel() for batch in found):
        raise ValueError("the calibration set has no tokens: give it at least one sequence")
    for number, batch in enumerate(found):
        if batch.dim() != 2 or batch.dtype != torch.long:
            raise ValueError(
                f"calibration batch {number} must be token ids (sequences, tokens) in int64, and it is "
                f"{tuple(batch.shape)} in {batch.dtype}"
            )
        if batch.numel() and not (0 <= int(batch.min()) and int(batch.max()) < vocabulary):
            raise ValueError(
                f"calibration batch {number} has token ids outside of 0 to {vocabulary - 1}: tokenise it "
                "with this model's tokenizer"
            )
    return [batch for batch in found if batch.numel()]


class Walk:
    """The hidden states of all batches on their way through the trunk."""

    def __init__(self, model: Transformer, batches: list[torch.Tensor]):
        mode = "sparse" if model.has_indexer else "dense"
        self._options = AttentionOptions(mode, model.config.index_top_k)
        batches = [batch.to(model.embed.weight.device) for batch in batches]
        self._views: list[Visibility] = [model._view(batch, None) for batch in batches]
        self._states = [model.embed(batch) for batch in batches]

    def through(self, block: Block) -> list[torch.Tensor]:
        """The states behind this block; the walk stays before it."""
        return [block(x, view, self._options)[0] for x, view in zip(self._states, self._views, strict=True)]

    def go_on(self, states: list[torch.Tensor]) -> None:
        self._states = states


def observe(walk: Walk, block: Block, prefix: str, *, min_tokens: int, hessians: bool = False) -> BlockInputs:
    """Inputs of every linear layer and expert of a block under the walk's states.

    Raises ``ValueError`` for NaN and infinity, and where all tokens chose the same experts.
    """
    found = BlockInputs(hessians)
    hooks = [
        module.register_forward_pre_hook(_linear_hook(found, f"{prefix}{name}.weight"))
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear)
    ]
    if isinstance(block.ffn, MoE):
        hooks.append(block.ffn.router.register_forward_hook(_expert_hook(found, block.ffn, f"{prefix}ffn")))
    try:
        found.outputs = walk.through(block)
    finally:
        for hook in hooks:
            hook.remove()
    if isinstance(block.ffn, MoE):
        _pool(found, block.ffn, f"{prefix}ffn", min_tokens)
    return found


@torch.no_grad()
def measure_kurtosis(model: Transformer, batches: list[torch.Tensor]) -> dict[str, float]:
    """Mean kurtosis of the inputs of each kind of matrix ("attention.q_down", "ffn.down", ..) over a float
    model's layers and experts. 3 is what a normal distribution has.
    """
    walk, kinds = Walk(model, batches), {}
    for number, block in enumerate(model.blocks):
        prefix = f"blocks.{number}."
        found = observe(walk, block, prefix, min_tokens=0)
        each = {name: [inputs] for name, inputs in found.linear.items()} | found.experts
        for name, inputs in each.items():
            kind = name.removeprefix(prefix).removesuffix(".weight")
            kinds.setdefault(kind, []).extend(one.kurtosis for one in inputs if one.tokens)
        walk.go_on(found.outputs)
    return {kind: sum(values) / len(values) for kind, values in sorted(kinds.items())}


def _linear_hook(found: BlockInputs, name: str):
    def collect(module: nn.Linear, arguments) -> None:
        x_NI = arguments[0].flatten(0, -2)
        _check(x_NI, name)
        found.linear.setdefault(name, found.inputs(module.in_features, x_NI.device)).add(x_NI)

    return collect


def _expert_hook(found: BlockInputs, moe: MoE, name: str):
    (E, D, width), device = moe.down.shape, moe.down.device
    found.experts[f"{name}.gate_up"] = [found.inputs(D, device) for _ in range(E)]
    found.experts[f"{name}.down"] = [found.inputs(width, device) for _ in range(E)]
    found.counts = [0] * E

    def collect(router: Router, arguments, chosen) -> None:
        x_MD, index_MK = arguments[0].flatten(0, 1), chosen[0]
        _check(x_MD, f"{name}.gate_up")
        for expert in range(E):
            rows_ND = x_MD[(index_MK == expert).any(-1)]
            found.counts[expert] += len(rows_ND)
            found.experts[f"{name}.gate_up"][expert].add(rows_ND)
            inner_NF = expert_inner(moe, expert, rows_ND)
            _check(inner_NF, f"{name}.down, expert {expert},")
            found.experts[f"{name}.down"][expert].add(inner_NF)

    return collect


def expert_inner(moe: MoE, expert: int, x_ND: torch.Tensor) -> torch.Tensor:
    """What the down projection of an expert reads, (N, F)."""
    gate, up = F.linear(x_ND, moe.gate_up[expert].to(x_ND.dtype)).chunk(2, dim=-1)
    return F.silu(gate) * up


def _pool(found: BlockInputs, moe: MoE, name: str, min_tokens: int) -> None:
    reached = [expert for expert, count in enumerate(found.counts) if count]
    if len(reached) <= moe.router.top_k < len(found.counts):
        raise ValueError(
            f"all calibration tokens chose the same {len(reached)} of {len(found.counts)} experts in {name}: "
            "calibrate with more varied text"
        )
    # The shared expert reads what the router and all experts read.
    everything = found.linear[f"{name}.shared.gate_up.weight"]
    fewest = max(min_tokens, 1)
    found.pooled = [expert for expert, count in enumerate(found.counts) if count < fewest]
    for expert in found.pooled:
        found.experts[f"{name}.gate_up"][expert] = everything
        inner = found.inputs(moe.down.shape[-1], moe.down.device)
        inner.add(expert_inner(moe, expert, everything.rows_NI))
        found.experts[f"{name}.down"][expert] = inner


def _check(x: torch.Tensor, name: str) -> None:
    if not x.isfinite().all():
        raise ValueError(
            f"the inputs of {name} hold NaN or infinity on the calibration tokens: check the model"
        )
