"""Gradients of one optimizer step from its micro-batches.

On a CUDA device one follows another, as CUDA graphs (``cuda_graphs.py``). On a CPU they run side by side.
Gradients are added in the micro-batches' order, so that the sum has the same bits however the threads ran.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from tasks.side_by_side import side_by_side
from tasks.training.batches import Batch
from tasks.training.cuda_graphs import CudaGradients, first_fault
from tasks.training.objective import Objective

Values = dict[str, torch.Tensor]


class NotFinite(ValueError):
    """A micro-batch's loss is not a finite number."""

    def __init__(self, loss: float, batch: Batch):
        where = ", ".join(batch.names[:4]) + (" ..." if len(batch.names) > 4 else "")
        super().__init__(f"the loss is {loss} on {where}")


class Accumulator:
    """Call it with the micro-batches of a step: sets ``grad`` of the parameters to the gradient of the step's
    loss and returns the mean of its values.

    A micro-batch weighs as much as the targets it holds, so that every target of the step counts the same
    wherever it stands. Raises ``NotFinite`` before any gradient of such a batch is used.
    """

    def __init__(self, objective: Objective, parameters: Iterable[torch.nn.Parameter]):
        self._objective = objective
        self._trained = [p for p in parameters if p.requires_grad]
        self._device = self._trained[0].device
        self._graphs = CudaGradients(objective, self._trained) if self._device.type == "cuda" else None

    def __call__(self, batches: Sequence[Batch], step: int, targets: int | None = None) -> dict[str, float]:
        """``targets``: of the whole step, where other processes have micro-batches of it; then gradients and
        values are this process's parts of the sums.
        """
        counts = [batch.targets() for batch in batches]
        weights = [count / max(sum(counts) if targets is None else targets, 1) for count in counts]
        sums: Values = {}
        for weight, values in zip(weights, self._values(batches, weights, step), strict=True):
            for key, value in values.items():
                sums[key] = sums.get(key, 0) + value * weight
        return {key: float(value) for key, value in sums.items()}

    def _values(self, batches: Sequence[Batch], weights: list[float], step: int) -> Iterator[Values]:
        """Adds each micro-batch's gradients to the parameters' and gives its values."""
        if self._graphs:
            results = self._graphs(batches, weights, step)
            if (fault := first_fault([loss for loss, _ in results])) is not None:
                raise NotFinite(results[fault][0].item(), batches[fault])
            yield from ({"train/loss": loss} | values for loss, values in results)
            return

        def gradients_of(weighted: tuple[Batch, float]) -> tuple[Sequence[torch.Tensor | None], Values]:
            return _gradients(self._objective, *weighted, self._trained, step)

        pieces = list(zip(batches, weights, strict=True))
        for gradients, values in side_by_side(gradients_of, pieces, self._device):
            for parameter, gradient in zip(self._trained, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            yield values


def _gradients(
    objective: Objective, batch: Batch, weight: float, parameters: list[torch.nn.Parameter], step: int
) -> tuple[Sequence[torch.Tensor | None], Values]:
    loss, values = objective(batch, step)
    if not math.isfinite(loss.item()):
        raise NotFinite(loss.item(), batch)
    gradients = torch.autograd.grad(loss * weight, parameters, allow_unused=True)
    # Some come transposed, which the optimizer would pay for.
    gradients = [None if gradient is None else gradient.contiguous() for gradient in gradients]
    return gradients, {key: value.detach() for key, value in ({"train/loss": loss} | values).items()}
