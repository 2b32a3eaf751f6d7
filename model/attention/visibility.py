"""Which keys each query sees: always one contiguous range ``start <= key < stop``.

The one rule covers plain causal attention (0, t + 1), packed documents (document start, t + 1), a sliding
window (max(start, t + 1 - W), t + 1), left padding, and decoding behind a cache (``cache.py``). B batch, T
queries, S keys.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch

from model.kernels.indexer_topk.reference import visible_mask


@dataclass(eq=False)
class Visibility:
    start_BT: torch.Tensor  # int32
    stop_BT: torch.Tensor  # int32
    keys: int  # S
    causal: bool  # exactly the triangle of plain causal attention, for which flash kernels need no mask
    turn_BTR: torch.Tensor  # complex64 rotary table, R rope dim / 2

    @cached_property
    def widest(self) -> int:
        """The most keys that any query sees: where they all fit the budget, selecting changes nothing.

        On CUDA no more than the number of keys is known: to ask the device would stop the host.
        """
        if self.causal or self.start_BT.is_cuda:
            return self.keys
        return int((self.stop_BT - self.start_BT).max())

    @cached_property
    def mask_B1TS(self) -> torch.Tensor:
        """bool mask for SDPA, built once per forward pass.

        A query that sees nothing (padding) is let see everything: its result is never used, and must not be
        NaN.
        """
        empty = (self.stop_BT <= self.start_BT).unsqueeze(-1)
        return (visible_mask(self.start_BT, self.stop_BT, self.keys) | empty).unsqueeze(1)

    @cached_property
    def _windows(self) -> dict[int, "Visibility"]:
        return {}

    def window(self, size: int) -> "Visibility":
        """The same, limited to the last ``size`` keys of every query; built once per forward pass."""
        if size not in self._windows:
            start = torch.maximum(self.start_BT, self.stop_BT - size)
            self._windows[size] = Visibility(
                start, self.stop_BT, self.keys, self.causal and self.keys <= size, self.turn_BTR
            )
        return self._windows[size]

    @classmethod
    def build(
        cls,
        batch: int,
        queries: int,
        start_BT: torch.Tensor | None,
        table,
        device: torch.device,
    ) -> Self:
        """Causal visibility of ``queries`` tokens.

        ``start_BT`` (or (B, 1)) is each query's first visible key, 0 where left out. Rotary positions count
        from it. ``table`` maps positions to the rotary table.
        """
        key = torch.arange(queries, dtype=torch.int32, device=device).expand(batch, queries)
        start = torch.zeros_like(key) if start_BT is None else start_BT.to(torch.int32).expand(batch, queries)
        # One row of angles serves the whole batch where all rows count alike.
        position_BT = key[:1] if start_BT is None else (key - start).clamp(min=0)
        return cls(start.contiguous(), key + 1, queries, start_BT is None, table(position_BT))
