"""A float model and its quantised forms on the same rows: one line of a table each."""

from collections.abc import Sequence
from typing import Any

import torch

from model.quantization.quality import Measured, Row, agreement, measure, perplexity_change
from model.transformer import Transformer
from tasks.quantization.rows import equal_batches


class Comparison:
    """``row`` is asked for the float model first; what comes after is compared with it."""

    def __init__(self, rows: dict[str, Sequence[Row]], prompts: Sequence[Sequence[int]], new_tokens: int):
        self._rows, self._prompts, self._new_tokens = rows, prompts, new_tokens
        # Read once more for routes, selections and divergence, which are kept by whole batches.
        self._batches: list[torch.Tensor] = equal_batches(
            [row.ids for group in rows.values() for row in group]
        )
        self._before: Measured | None = None

    def row(self, model: Transformer) -> dict[str, Any]:
        """Perplexity of each group and its change with a 95 % interval, overlaps, and accepted drafts."""
        found = measure(model, self._rows, self._batches, self._prompts, new_tokens=self._new_tokens)
        row: dict[str, Any] = {f"perplexity_{group}": found.perplexity(group) for group in self._rows}
        if model.mtp is not None:
            row["accept_length"] = found.accept_length
        if self._before is None:
            self._before = found
            return row
        for group in self._rows:
            change, low, high = perplexity_change(self._before, found, group)
            row[f"perplexity_{group}_change"] = change
            row[f"perplexity_{group}_interval"] = [low, high]
        return row | agreement(self._before, found)
