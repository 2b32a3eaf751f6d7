"""Muon with Muon Split (GLM-5 paper section 2.1; Moonlight eq. 4; GLM-4.5 section 2.4).

    M <- mu M + G;   O = NewtonSchulz(G + mu M);   W <- W - lr (0.2 sqrt(max(rows, cols)) O + wd W)

Every parameter is a pile of blocks, and each block is orthogonalised as a matrix of its own, with the scale
of its own shape, so that the RMS of an update is about 0.2 whatever the cut. Muon Split cuts W_UQ, W_UK and
W_UV into their heads.
"""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from model.kernels.newton_schulz.reference import working_dtype
from model.kernels.registry import decayed_update, nesterov_direction, newton_schulz

UPDATE_RMS = 0.2
# Elements orthogonalised in one batch, at most: bounds the optimizer's working memory. On a card two batches
# have theirs at once.
BATCH_ELEMENTS = 1 << 28


class Muon(torch.optim.Optimizer):
    """Muon over parameters of two or more dimensions.

    Args:
        parameters: pairs of a parameter and its number of blocks. A matrix (rows, cols) is cut into that
            many equal ranges of rows; an expert stack (experts, rows, cols) has every expert cut so.
        lr, momentum, weight_decay: plain numbers; the decay is decoupled.
        shard: a process group whose ranks hold equal parameters and gradients: each orthogonalises its
            share of the blocks, and all receive the results (paper section 2.4.1).
    """

    def __init__(
        self,
        parameters: Iterable[tuple[torch.nn.Parameter, int]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        shard: dist.ProcessGroup | None = None,
    ):
        pairs = list(parameters)
        group = {"params": [p for p, _ in pairs], "blocks": [blocks for _, blocks in pairs]}
        super().__init__([group], {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._shard = shard
        self._side: torch.cuda.Stream | None = None

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        work = []
        for group in self.param_groups:
            # Shape of the blocks, rows <= cols: (parameter, its number of blocks).
            piles = defaultdict(list)
            for parameter, blocks in zip(group["params"], group["blocks"], strict=True):
                if parameter.grad is not None:
                    piles[tuple(sorted(as_blocks(parameter, blocks).shape[-2:]))].append((parameter, blocks))
            # The largest first: while the device works on them, the host starts what follows.
            for shape, pile in sorted(piles.items(), reverse=True):
                work += [(batch, shape, group) for batch in _batches(pile)]
        for lane, each in zip(self._lanes(), work, strict=False):
            with lane:
                self._update(*each)
        if self._side:
            torch.cuda.current_stream().wait_stream(self._side)

    def _lanes(self) -> Iterator[contextlib.AbstractContextManager]:
        """Where batch after batch is computed: on a card in two streams by turns, so that one fills the
        device where the last tiles of a product of the other leave it half empty.
        """
        if not any(parameter.is_cuda for group in self.param_groups for parameter in group["params"]):
            return itertools.repeat(contextlib.nullcontext())
        self._side = self._side or torch.cuda.Stream()
        self._side.wait_stream(torch.cuda.current_stream())
        return itertools.cycle((contextlib.nullcontext(), torch.cuda.stream(self._side)))

    def _update(self, batch: list[tuple[torch.nn.Parameter, int]], shape: tuple, group: dict) -> None:
        counts = [parameter.numel() // (shape[0] * shape[1]) for parameter, _ in batch]
        first = batch[0][0]
        direction_LAB = torch.empty(sum(counts), *shape, dtype=working_dtype(first), device=first.device)
        norms = [
            nesterov_direction(
                as_blocks(self._momentum(parameter), blocks),
                as_blocks(parameter.grad.contiguous(), blocks),
                group["momentum"],
                place,
            )
            for (parameter, blocks), place in zip(batch, direction_LAB.split(counts), strict=True)
        ]
        # Of whole blocks or of their parts; reduced once for the batch, not once a parameter.
        norm_LN = torch.cat(norms)
        norm_L = norm_LN[:, 0] if norm_LN.shape[1] == 1 else torch.linalg.vector_norm(norm_LN, dim=1)
        orthogonal_LAB = self._orthogonalise(direction_LAB, norm_L)
        step = -group["lr"] * UPDATE_RMS * max(shape) ** 0.5
        for (parameter, blocks), piece in zip(batch, orthogonal_LAB.split(counts), strict=True):
            decayed_update(as_blocks(parameter, blocks), piece, 1 - group["lr"] * group["weight_decay"], step)

    def _momentum(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        return state["momentum"]

    def _orthogonalise(self, x_LAB: torch.Tensor, norm_L: torch.Tensor) -> torch.Tensor:
        if self._shard is None:
            return newton_schulz(x_LAB, norm_L)
        ranks, rank = dist.get_world_size(self._shard), dist.get_rank(self._shard)
        share = -(-len(x_LAB) // ranks)
        mine = x_LAB.new_zeros(share, *x_LAB.shape[1:])
        own = slice(rank * share, (rank + 1) * share)
        if len(x_LAB[own]):
            mine[: len(x_LAB[own])] = newton_schulz(x_LAB[own], norm_L[own])
        everyone = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(everyone, mine, group=self._shard)
        return torch.cat(everyone)[: len(x_LAB)]


def as_blocks(x: torch.Tensor, blocks: int) -> torch.Tensor:
    """(number of blocks, rows, cols): a view of a matrix or expert stack, each matrix in ``blocks`` parts."""
    return x.view(-1, x.shape[-2] // blocks, x.shape[-1])


def _batches(pile: list[tuple[torch.nn.Parameter, int]]) -> Iterable[list]:
    batch, size = [], 0
    for parameter, blocks in pile:
        if batch and size + parameter.numel() > BATCH_ELEMENTS:
            yield batch
            batch, size = [], 0
        batch.append((parameter, blocks))
        size += parameter.numel()
    if batch:
        yield batch
