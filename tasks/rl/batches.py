"""From the trajectories of a step to packed micro-batches: tokens, advantages, weights, experts.

B rows, T tokens, L MoE layers, K experts of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from model.loss import IGNORE
from pipeline.packing import best_fit
from tasks.rl.trajectory import Segment
from tasks.training.batches import Batch


@dataclass
class PolicyBatch(Batch):
    """One micro-batch. What belongs to a sampled token stands where it is predicted, a place before it.

    ``scale`` makes up for the weight that a micro-batch has in a step, so that the losses of all add up.
    """

    rollout_BT: torch.Tensor  # float32, log-probability in the engine
    advantage_BT: torch.Tensor  # float32
    weight_BT: torch.Tensor  # float32, 0 where nothing was sampled
    route_LBTK: torch.Tensor | None  # int16, -1 where the router chooses
    scale: torch.Tensor  # float32, a scalar


@dataclass(frozen=True)
class Sample:
    """A segment to train on. ``advantage``: of all tokens or of each, and where a teacher is followed its
    log-probabilities; ``weight``: of a sampled token; ``family``: "environment/family".
    """

    segment: Segment
    advantage: float | Sequence[float]
    weight: float
    name: str
    family: str = ""


def pack(samples: Sequence[Sample], length: int, micro_batch: int, pad_id: int) -> list[PolicyBatch]:
    """Micro-batches of ``micro_batch`` rows of ``length`` tokens; no segment sees another.

    Raises ``ValueError`` for a segment that is longer than a row.
    """
    for sample in samples:
        if len(sample.segment) > length:
            raise ValueError(f"{sample.name} has {len(sample.segment)} tokens, more than a row's {length}")
    rows = best_fit([len(sample.segment) for sample in samples], length)
    rows += [[]] * (-len(rows) % micro_batch)
    batches = [
        _batch(samples, rows[start : start + micro_batch], length, pad_id)
        for start in range(0, len(rows), micro_batch)
    ]
    targets = [int((batch.target_BT != IGNORE).sum()) for batch in batches]
    kept = [(batch, count) for batch, count in zip(batches, targets, strict=True) if count]
    for batch, count in kept:
        batch.scale.fill_(sum(targets) / count)
    return [batch for batch, _ in kept]


def _batch(samples: Sequence[Sample], rows: list[list[int]], length: int, pad_id: int) -> PolicyBatch:
    shape = (len(rows), length)
    tokens, target = np.full(shape, pad_id, np.int64), np.full(shape, IGNORE, np.int64)
    start = np.tile(np.arange(length, dtype=np.int32), (len(rows), 1))
    rollout, advantage, weight = (np.zeros(shape, np.float32) for _ in range(3))
    routes, names = None, []
    for row, pieces in enumerate(rows):
        first = 0
        for piece in pieces:
            sample = samples[piece]
            segment, n = sample.segment, len(sample.segment)
            ids, sampled = np.array(segment.ids), np.array(segment.sampled)[1:]
            places = slice(first, first + n - 1)
            tokens[row, first : first + n] = ids
            start[row, first : first + n] = first
            target[row, places] = np.where(sampled, ids[1:], IGNORE)
            rollout[row, places] = np.array(segment.logprobs, np.float32)[1:]
            advantage[row, places] = np.broadcast_to(sample.advantage, n)[1:]
            weight[row, places] = np.where(sampled, sample.weight, 0.0)
            if segment.experts is not None and len(segment.experts):
                if routes is None:
                    routes = np.full(
                        (segment.experts.shape[1], *shape, segment.experts.shape[2]), -1, np.int16
                    )
                read = segment.experts[:n]
                routes[:, row, first : first + len(read)] = read.swapaxes(0, 1)
            names.append(sample.name)
            first += n
    return PolicyBatch(
        torch.from_numpy(tokens), torch.from_numpy(target), torch.from_numpy(start), names,
        torch.from_numpy(rollout), torch.from_numpy(advantage), torch.from_numpy(weight),
        None if routes is None else torch.from_numpy(routes), torch.ones(()),
    )  # fmt: skip
