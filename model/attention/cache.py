"""What decoding keeps of earlier tokens, in pages: per layer the kv latent with the rotated shared key, and
the indexer's key (paper section 2.1: 512 + 64 numbers per token and layer in GLM-5, and 128 for the indexer).

Keys and values per head are never stored. A pass of the model reads new tokens of several sequences at once,
laid out flat: ``PagedView`` says where each of them is written and what it sees.

M tokens of a pass, B sequences, T new tokens of each, S keys, X = kv latent + rope dim, J indexer dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Self

import numpy as np
import torch

from model.attention.visibility import Visibility
from model.config import ModelConfig

# The first page belongs to nobody and stays zero: what stands in for keys that are not there is read from it.
NO_PAGE = 0


class PagedCache:
    """Rows for ``pages`` pages of ``page_size`` tokens in every layer; the engine knows their owners."""

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        page_size: int,
        *,
        layers: int,
        indexer: bool,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        routes: bool = False,
    ):
        """``layers``: the trunk's, and one more where the MTP block drafts. ``routes``: keep the experts of
        every token as well.
        """
        self.pages, self.page_size = pages, page_size

        def rows(count: int, width: int) -> list[torch.Tensor]:
            return [torch.zeros(pages * page_size, width, device=device, dtype=dtype) for _ in range(count)]

        self.kv = rows(layers, config.kv_latent + config.qk_rope_dim)
        self.index_keys = rows(layers if indexer else 0, config.index_dim)
        experts = (config.num_layers - config.first_dense_layers, pages * page_size, config.experts_per_token)
        # int16 (MoE layers, rows, K): the experts that each token went to, in descending order of score
        self.routes = torch.zeros(experts, dtype=torch.int16, device=device) if routes else None

    @property
    def bytes_per_token(self) -> int:
        return sum(t.shape[1] * t.element_size() for t in (*self.kv, *self.index_keys))

    def write(
        self, layer: int, row_M: torch.Tensor, kv_MX: torch.Tensor, key_MJ: torch.Tensor | None
    ) -> None:
        """Store a layer's new latents, and indexer keys where the cache holds them."""
        self.kv[layer].index_copy_(0, row_M, kv_MX)
        if self.index_keys:
            self.index_keys[layer].index_copy_(0, row_M, key_MJ)


@dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence: ``count`` of them from position ``first`` on; ``pages`` hold them."""

    pages: Sequence[int]
    first: int
    count: int


@dataclass(eq=False)
class Group:
    """Sequences that read equally many tokens in a pass: a batch with keys padded to the longest."""

    tokens: slice  # of the pass
    batch: int
    row_BS: torch.Tensor  # int64, the cache row of every key; row 0 behind a sequence's end
    view: Visibility

    @cached_property
    def row_BTS(self) -> torch.Tensor:
        """int32 rows of the visible keys of every query, -1 for the others: all keys as a selection."""
        return self.rows_of(self.view)

    def rows_of(self, view: Visibility) -> torch.Tensor:
        row_BTS = self.row_BS.unsqueeze(1).expand(-1, view.start_BT.shape[1], -1)
        return row_BTS.masked_fill(~view.mask_B1TS.squeeze(1), -1).int()

    def select(self, index_BTK: torch.Tensor) -> torch.Tensor:
        """int64 cache rows of selected keys; the first key's where none is selected."""
        row_BTS = self.row_BS.unsqueeze(1).expand(-1, index_BTK.shape[1], -1)
        return row_BTS.gather(-1, index_BTK.clamp(min=0).long())

    def gather(self, pool: torch.Tensor) -> torch.Tensor:
        """(B, S, width) of a pool of the cache."""
        return pool.index_select(0, self.row_BS.flatten()).view(*self.row_BS.shape, -1)

    def batched(self, x: torch.Tensor) -> torch.Tensor:
        """The group's part (B, T, ...) of what a pass has flat, (1, M, ...)."""
        return x[0, self.tokens].unflatten(0, (self.batch, -1))


@dataclass(eq=False)
class PagedView:
    """What a pass over a paged cache needs, in place of ``Visibility``."""

    cache: PagedCache
    row_M: torch.Tensor  # int64, where each token is stored
    groups: list[Group]
    position_M: torch.Tensor  # int64, rotary
    turn_BTR: torch.Tensor  # complex64 (1, M, R / 2)

    @classmethod
    def build(
        cls,
        cache: PagedCache,
        chunks: Sequence[Chunk],
        table: Callable[[torch.Tensor], torch.Tensor],
        *,
        start: int = 0,
    ) -> Self:
        """The view of chunks that lie one after another in the pass; neighbours of equal length are a batch.

        ``table`` maps positions to the rotary table. ``start``: the first key that is visible and from which
        positions count, 1 for the MTP block (see ``model/inference/speculative.py``).
        """
        device, size = cache.kv[0].device, cache.page_size
        groups, slots, rows, token = [], [], [], 0
        for count, run in groupby(chunks, key=lambda chunk: chunk.count):
            run = list(run)
            slot_BT = np.array([chunk.first for chunk in run])[:, None] + np.arange(count)
            row_BS = _rows(run, slot_BT[:, -1] + 1, size)
            slots.append(slot_BT.ravel())
            rows.append(row_BS[np.arange(len(run))[:, None], slot_BT].ravel())
            view = _visibility(slot_BT, row_BS.shape[1], start, device)
            tokens = slice(token, token + slot_BT.size)
            groups.append(Group(tokens, len(run), torch.from_numpy(row_BS).to(device), view))
            token = tokens.stop
        row_M, slot_M = (torch.from_numpy(np.concatenate(x)).to(device) for x in (rows, slots))
        position_M = slot_M - start
        return cls(cache, row_M, groups, position_M, table(position_M.unsqueeze(0)))

    @classmethod
    def of_next(
        cls, cache: PagedCache, page_BP: torch.Tensor, slot_B: torch.Tensor,
        table: Callable[[torch.Tensor], torch.Tensor],
    ) -> Self:  # fmt: skip
        """The view of one new token of each sequence, at ``slot_B`` of its pages ``page_BP`` (both int64).

        Built by the device without waiting for it, and of shapes that follow from the arguments' alone, so
        that a CUDA graph can hold it: every sequence has as many keys as its row of pages has room for, those
        behind its slot unseen. What stands behind a sequence's last page is of no account.
        """
        B, P = page_BP.shape
        key_S = torch.arange(P * cache.page_size, device=page_BP.device)
        row_BPZ = page_BP.unsqueeze(-1) * cache.page_size + key_S[: cache.page_size]
        row_BS = row_BPZ.flatten(1)
        slot_B1 = slot_B.unsqueeze(1)
        row_B = row_BS.gather(1, slot_B1).squeeze(1)
        row_BS = torch.where(key_S <= slot_B1, row_BS, NO_PAGE * cache.page_size)
        stop_B1 = slot_B1.int() + 1
        view = Visibility(torch.zeros_like(stop_B1), stop_B1, len(key_S), False, torch.empty(0))
        view.widest = len(key_S)  # at most: the slots themselves are the device's
        groups = [Group(slice(0, B), B, row_BS, view)]
        return cls(cache, row_B, groups, slot_B, table(slot_B.unsqueeze(0)))


def _rows(run: list[Chunk], end_B: np.ndarray, page_size: int) -> np.ndarray:
    """(B, S) cache rows of all keys up to each chunk's end, those of ``NO_PAGE`` behind it."""
    S = int(end_B.max())
    pages = -(-S // page_size)
    table = np.array([[*chunk.pages[:pages], *[NO_PAGE] * (pages - len(chunk.pages))] for chunk in run])
    row_BS = (table[:, :, None] * page_size + np.arange(page_size)).reshape(len(run), -1)[:, :S]
    return np.where(np.arange(S) < end_B[:, None], row_BS, NO_PAGE * page_size)


def _visibility(slot_BT: np.ndarray, keys: int, start: int, device: torch.device) -> Visibility:
    stop_BT = torch.from_numpy(slot_BT.astype(np.int32) + 1).to(device)
    causal = start == 0 and slot_BT.shape[1] == keys  # then every sequence starts at its first token
    # The rotary table is the pass's; a group's view is asked for what is visible only.
    view = Visibility(torch.full_like(stop_BT, start), stop_BT, keys, causal, torch.empty(0))
    view.widest = keys - start  # known here; computing it from the tensors would wait for the device
    return view
