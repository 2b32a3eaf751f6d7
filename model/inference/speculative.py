"""Drafts of the next tokens by the shared MTP block (paper section 2.1: one block, used for 1..N steps).

The trunk reads drafts together with the last token and gives each place its own draw; drafts are kept as far
as they are what was drawn. Draft and draw share their noise (``sampler.gumbel``), so a good draft is mostly
the token itself, also with a temperature, and the tokens are exactly those without drafts.

The block's cache: its entry for (state before token u, token u) lies in slot u of the sequence's pages, so an
entry depends on tokens up to u alone, and pages are shared with other requests like the trunk's. Slot 0 stays
unseen. Step 1 writes with the trunk's states. Later steps of a chain go on with the block's own states, one
slot further each, and what they wrote is replaced once the tokens are known.
"""

import torch

from model.attention.cache import Chunk, PagedCache
from model.attention.mla import AttentionOptions
from model.inference.sampler import choose
from model.inference.scheduler import Reading
from model.inference.sequence import Sequence
from model.transformer import Transformer


class Drafter:
    def __init__(self, model: Transformer, cache: PagedCache, steps: int, options: AttentionOptions):
        self._model, self._cache, self._steps, self._options = model, cache, steps, options
        # The trunk's state at each page's last token: what a request needs that begins behind shared pages.
        weight = model.embed.weight
        self._state_PD = torch.zeros(cache.pages, weight.shape[1], dtype=weight.dtype, device=weight.device)

    def keep_states(self, readings: list[Reading], hidden_MD: torch.Tensor) -> None:
        """Remember the pass's states at the ends of pages."""
        size, offset = self._cache.page_size, 0
        pages, rows = [], []
        for reading in readings:
            for position in range(reading.first, reading.first + reading.total):
                if (position + 1) % size == 0:
                    pages.append(reading.sequence.pages[position // size])
                    rows.append(offset + position - reading.first)
            offset += reading.total
        if pages:
            device = hidden_MD.device
            self._state_PD[torch.tensor(pages, device=device)] = hidden_MD[torch.tensor(rows, device=device)]

    def follow(self, readings: list[Reading], hidden_MD: torch.Tensor) -> None:
        """Let the block read behind the trunk, and draft for the sequences that are caught up."""
        jobs, offset = [], 0
        for reading in readings:
            sequence = reading.sequence
            if sequence.samples:  # also of one that has ended: others may share its pages
                jobs.append((reading.first + reading.total + 1 - sequence.drafted, reading, offset))
            offset += reading.total
        if not jobs:
            return
        jobs.sort(key=lambda job: job[0])
        state_MD, last = self._read(jobs, hidden_MD)
        ready = [(s, row) for s, row in last if s.completion.finish is None and s.unread == 1 and s.left > 1]
        if ready:
            rows = torch.tensor([row for _, row in ready], device=state_MD.device)
            self._draft([sequence for sequence, _ in ready], state_MD[rows])

    def _read(self, jobs: list[tuple[int, Reading, int]], hidden_MD: torch.Tensor):
        """The block's states, and for each sequence the row of the slot of its last known token."""
        tokens, sources, pages, chunks, last = [], [], [], [], []
        for count, reading, offset in jobs:
            sequence, first = reading.sequence, reading.sequence.drafted
            ids = sequence.ids[first : first + count]
            last.append((sequence, len(tokens) + sequence.read - first))
            chunks.append(Chunk(sequence.pages, first, count))
            # Places behind the known tokens (refused drafts) are read for an even shape and mean nothing.
            tokens += ids + [0] * (count - len(ids))
            row = offset + first - 1 - reading.first
            if row < offset:  # the state before the first token that was read, kept with the page before it
                sources.append(hidden_MD.shape[0] + len(pages))
                pages.append(sequence.pages[(first - 1) // self._cache.page_size])
                sources += range(offset, offset + count - 1)
            else:
                sources += range(row, row + count)
            sequence.drafted = sequence.read + 1
        device = hidden_MD.device
        if pages:
            hidden_MD = torch.cat([hidden_MD, self._state_PD[torch.tensor(pages, device=device)]])
        view = self._model.paged_view(self._cache, chunks, start=1)
        state_MD = self._model.read_mtp(
            torch.tensor(tokens, device=device),
            self._model.mtp.receive(hidden_MD[torch.tensor(sources, device=device)]),
            view,
            self._options,
        )
        return state_MD, last

    def _draft(self, sequences: list[Sequence], state_BD: torch.Tensor) -> None:
        drafts = []
        for step in range(self._steps):
            if step:
                chunks = [Chunk(s.pages, len(s.ids) - 1 + step, 1) for s in sequences]
                view = self._model.paged_view(self._cache, chunks, start=1)
                state_BD = self._model.read_mtp(drafts[-1], state_BD, view, self._options)
            logits_BV = self._model.draft_head(self._model.mtp.norm(state_BD))
            drafts.append(choose(logits_BV, [s.draw(step) for s in sequences]))
        for sequence, row in zip(sequences, torch.stack(drafts, 1).tolist(), strict=True):
            sequence.drafts = row[: sequence.left - 1]
