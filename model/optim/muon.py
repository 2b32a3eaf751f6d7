"""Muon with Muon Split (GLM-5 paper section 2.1; Moonlight eq. 4; GLM-4.5 section 2.4).

    M <- mu M + G;   O = NewtonSchulz(G + mu M);   W <- W - lr (0.2 sqrt(max(rows, cols)) O + wd W)

Every parameter is a pile of blocks, and each block is orthogonalised as a matrix of its own, with the scale
of its own shape, so that the RMS of an update is about 0.2 whatever the cut. Muon Split cuts W_UQ, W_UK and
W_UV into their heads.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist

from model.kernels.registry import newton_schulz

UPDATE_RMS = 0.2
# Elements orthogonalised in one batch, at most: bounds the optimizer's working memory.
BATCH_ELEMENTS = 1 << 27


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

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            # Shape of the blocks, rows <= cols: (weight blocks, direction blocks).
            targets = defaultdict(list)
            for parameter, blocks in zip(group["params"], group["blocks"], strict=True):
                if parameter.grad is None:
                    continue
                direction = as_blocks(self._direction(parameter, group["momentum"]), blocks)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                weight = as_blocks(parameter, blocks)
                if weight.shape[-2] > weight.shape[-1]:
                    weight, direction = weight.mT, direction.mT
                targets[tuple(weight.shape[-2:])].append((weight, direction))
            for shape, pile in targets.items():
                step = -group["lr"] * UPDATE_RMS * max(shape) ** 0.5
                for batch in _batches(pile):
                    self._update(batch, step)

    def _direction(self, parameter: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        """Nesterov: the gradient plus the momentum that already holds it."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(momentum).add_(parameter.grad)
        return parameter.grad.add(state["momentum"], alpha=momentum)

    def _update(self, batch: list[tuple[torch.Tensor, torch.Tensor]], step: float) -> None:
        direction_LAB = torch.cat([direction for _, direction in batch])
        orthogonal_LAB = self._orthogonalise(direction_LAB)
        pieces = orthogonal_LAB.split([len(weight) for weight, _ in batch])
        for (weight, _), piece in zip(batch, pieces, strict=True):
            weight.add_(piece, alpha=step)

    def _orthogonalise(self, x_LAB: torch.Tensor) -> torch.Tensor:
        if self._shard is None:
            return newton_schulz(x_LAB)
        ranks, rank = dist.get_world_size(self._shard), dist.get_rank(self._shard)
        share = -(-len(x_LAB) // ranks)
        mine = x_LAB.new_zeros(share, *x_LAB.shape[1:])
        own = x_LAB[rank * share : (rank + 1) * share]
        mine[: len(own)] = newton_schulz(own) if len(own) else own
        everyone = x_LAB.new_empty(ranks * share, *x_LAB.shape[1:])
        dist.all_gather_single(everyone, mine, group=self._shard)
        return everyone[: len(x_LAB)]


def as_blocks(x: torch.Tensor, blocks: int) -> torch.Tensor:
    """(number of blocks, rows, cols): a view of a matrix or expert stack, each matrix in ``blocks`` parts."""
    return x.view(-1, x.shape[-2] // blocks, x.shape[-1])


def _batches(pile: list) -> Iterable[list]:
    batch, size = [], 0
    for weight, direction in pile:
        if batch and size + weight.numel() > BATCH_ELEMENTS:
            yield batch
            batch, size = [], 0
        batch.append((weight, direction))
        size += weight.numel()
    if batch:
        yield batch
