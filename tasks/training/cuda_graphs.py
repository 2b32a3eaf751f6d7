"""Gradients of an optimizer step on CUDA, a micro-batch's forward and backward pass as one graph.

A step of a small model is hundreds of short kernels a layer, and starting each from Python takes longer than
running it. The micro-batches of a kind (shapes, and which losses) are run as usual in the first step that has
them, which also compiles their kernels; the next such step records them once, and from then on they are
replayed on new inputs. Gradients are added up in place, so no second set of them exists.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import torch

from model.capture import without_collection
from tasks.training.batches import Batch
from tasks.training.objective import Objective
from tasks.training.precision import narrow

Values = dict[str, torch.Tensor]


class CudaGradients:
    """Call it with the step's micro-batches and their weights."""

    def __init__(self, objective: Objective, parameters: Sequence[torch.nn.Parameter]):
        self._objective, self._parameters = objective, parameters
        self._device = parameters[0].device
        self._met: dict[Hashable, list[torch.nn.Parameter]] = {}  # what gets a gradient, by kind
        self._recorded: dict[Hashable, _Recorded] = {}
        self._buffers: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._pool = None

    def __call__(
        self, batches: Sequence[Batch], weights: Sequence[float], step: int
    ) -> list[tuple[torch.Tensor, Values]]:
        """Set ``grad``; returns each micro-batch's loss and values, still on the device."""
        shapes = tuple((name, value.shape) for name, value in batches[0].tensors().items())
        kind = (shapes, self._objective.kind(step))
        if kind not in self._met:
            run: Callable = self._run
        else:
            self._clear(self._met[kind])
            run = self._record(kind, batches[0], step)
        results = [run(batch, weight, step) for batch, weight in zip(batches, weights, strict=True)]
        if kind not in self._met:
            self._met[kind] = [p for p in self._parameters if p.grad is not None]
        return results

    def _run(self, batch: Batch, weight: float | torch.Tensor, step: int) -> tuple[torch.Tensor, Values]:
        with narrow(self._device):
            loss, values = self._objective(batch.to(self._device), step)
        (loss * weight).backward()
        return loss.detach(), {key: value.detach() for key, value in values.items()}

    def _clear(self, parameters: list[torch.nn.Parameter]) -> None:
        """Gradients of zero, in the memory that the graphs add to."""
        for parameter in parameters:
            if parameter not in self._buffers:
                self._buffers[parameter] = torch.empty_like(parameter)
            parameter.grad = self._buffers[parameter]
        torch._foreach_zero_([self._buffers[parameter] for parameter in parameters])

    def _record(self, kind: Hashable, batch: Batch, step: int) -> "_Recorded":
        if kind not in self._recorded:
            recorded = _Recorded(batch.to(self._device), self._objective)
            graph = torch.cuda.CUDAGraph()
            with without_collection(), torch.cuda.graph(graph, pool=self._pool):
                recorded.results = self._run(recorded.batch, recorded.weight, step)
            recorded.finish(graph)
            self._pool = graph.pool()
            self._recorded[kind] = recorded
        return self._recorded[kind]


class _Recorded:
    """A recorded micro-batch: call it as ``_run``, with any inputs of the same shapes."""

    def __init__(self, batch: Batch, objective: Objective):
        self.batch, self.weight = batch, torch.ones((), device=batch.tokens_BT.device)
        self._loads, self._before = objective.loads, len(objective.loads)
        self.results: tuple[torch.Tensor, Values] | None = None

    def finish(self, graph: torch.cuda.CUDAGraph) -> None:
        """Take back what recording left with the objective: it is filled by a replay only."""
        self._graph = graph
        self._left = self._loads[self._before :]
        del self._loads[self._before :]

    def __call__(self, batch: Batch, weight: float, step: int) -> tuple[torch.Tensor, Values]:
        given = batch.tensors()
        for name, value in self.batch.tensors().items():
            value.copy_(given[name])
        self.weight.fill_(weight)
        self._graph.replay()
        self._loads.extend(load.clone() for load in self._left)
        loss, values = self.results
        return loss.clone(), {key: value.clone() for key, value in values.items()}


def first_fault(losses: Sequence[torch.Tensor]) -> int | None:
    """Which loss is the first that is no finite number; waits for the device once."""
    for number, loss in enumerate(torch.stack(list(losses)).tolist()):
        if not math.isfinite(loss):
            return number
    return None
