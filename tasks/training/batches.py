"""Batches as a pure function of (seed, step): a resumed run sees the same data without any saved position."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch

from model.loss import IGNORE, next_targets
from pipeline.errors import UserError


@dataclass
class Batch:
    """One micro-batch. int64 tokens and targets (B, T); int32 start (B, T): the first key each query sees."""

    tokens_BT: torch.Tensor
    target_BT: torch.Tensor
    start_BT: torch.Tensor | None  # None: plain causal, nothing packed
    names: list[str]  # where each row came from, for messages

    def targets(self) -> int:
        """How many tokens are trained or judged."""
        return int((self.target_BT != IGNORE).sum())

    def tensors(self) -> dict[str, torch.Tensor]:
        """What it holds by name, of those that are there."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def to(self, device: torch.device) -> Self:
        return replace(self, **{name: value.to(device) for name, value in self.tensors().items()})


class Batches(Protocol):
    """Rows in a seeded order, each epoch another one."""

    rows: int
    length: int

    def take(self, rows: np.ndarray) -> Batch: ...


def rows_of_step(total: int, per_step: int, seed: int, step: int) -> np.ndarray:
    """The ``per_step`` row numbers of optimizer step ``step`` (from 0): all rows permuted, end to end."""
    first = step * per_step
    picked = []
    for position in range(first, first + per_step):
        epoch, place = divmod(position, total)
        picked.append(_permutation(total, seed, epoch)[place])
    return np.array(picked)


_permutations: dict[tuple[int, int, int], np.ndarray] = {}


def _permutation(total: int, seed: int, epoch: int) -> np.ndarray:
    key = (total, seed, epoch)
    if key not in _permutations:
        _permutations.clear()
        _permutations[key] = np.random.default_rng([seed, epoch]).permutation(total)
    return _permutations[key]


class StreamBatches:
    """Windows of a token stream, for pre-training: cut at the edge, no best-fit packing (GLM-4.5 2.3)."""

    def __init__(self, folder: Path, length: int, file: str = "tokens.bin"):
        meta = json.loads((folder / "meta.json").read_text())
        self.stream = np.memmap(folder / file, dtype=meta["dtype"], mode="r")
        self.length = length
        self.rows = (len(self.stream) - 1) // length
        self.name = f"{folder.name}/{file}"
        if self.rows < 1:
            raise UserError(
                f"{folder / file} holds {len(self.stream)} tokens, fewer than one window of {length}"
            )

    def take(self, rows: np.ndarray) -> Batch:
        windows = np.stack([self.stream[row * self.length :][: self.length + 1] for row in rows]).astype(
            np.int64
        )
        tokens = torch.from_numpy(windows)
        names = [f"{self.name} tokens {row * self.length}.." for row in rows]
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), None, names)


class PackedBatches:
    """Rows of whole documents packed to one length; no document sees or predicts another."""

    def __init__(
        self,
        tokens_NL: np.ndarray,
        starts_NL: np.ndarray,
        name: str,
        trained_NL: np.ndarray | None = None,  # which tokens are targets; all where left out
        numbers: np.ndarray | None = None,  # the rows that take part; all where left out
    ):
        self.tokens, self.starts, self.trained = tokens_NL, starts_NL, trained_NL
        self.numbers = numbers
        self.rows = len(tokens_NL) if numbers is None else len(numbers)
        self.length = tokens_NL.shape[1]
        self.name = name

    @classmethod
    def read(cls, folder: Path, length: int) -> "PackedBatches":
        """The rows of context ``length`` that ``midtrain_data`` wrote."""
        path = folder / f"seq_{length}.tokens.npy"
        if not path.exists():
            there = sorted(file.name.split(".")[0][4:] for file in folder.glob("seq_*.tokens.npy"))
            raise UserError(
                f"{folder} has no sequences of length {length} (it has {', '.join(there) or 'none'}): "
                "add the length to midtrain_data.contexts in the recipe"
            )
        starts = np.load(folder / f"seq_{length}.starts.npy", mmap_mode="r")
        return cls(np.load(path, mmap_mode="r"), starts, f"{folder.name}/seq_{length}")

    def without(self, rows: np.ndarray) -> "PackedBatches":
        """The same without some rows; the others keep their numbers in messages."""
        kept = np.delete(np.arange(self.rows) if self.numbers is None else self.numbers, rows)
        return PackedBatches(self.tokens, self.starts, self.name, self.trained, kept)

    def take(self, rows: np.ndarray) -> Batch:
        rows = rows if self.numbers is None else self.numbers[rows]
        tokens = torch.from_numpy(self.tokens[rows].astype(np.int64))
        start = torch.from_numpy(self.starts[rows].astype(np.int32))
        target = next_targets(tokens, start)
        if self.trained is not None:
            trained = torch.from_numpy(self.trained[rows][:, 1:].astype(bool))
            target[:, :-1][~trained] = IGNORE
        return Batch(tokens, target, start, [f"{self.name} row {row}" for row in rows])
