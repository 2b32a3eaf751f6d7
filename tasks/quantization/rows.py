"""Rows to calibrate on and rows to compare on, none of them in both.

Chats: those that fine-tuning kept for validation are compared, the ones behind them are calibrated on.
Documents: windows of the pre-training stream are calibrated on, held-out documents of ``eval_sets`` compared.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from model.chat.renderer import Rendered
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from model.quantization.quality import Row
from pipeline.errors import UserError
from pipeline.recipe.quantization import Calibration, HeldOut
from pipeline.recipe.training import SftSection
from tasks.training.batches import StreamBatches
from tasks.training.chats import rendered
from tasks.training.setup import spread

CUT = 16  # rows are cut to multiples of so many tokens, so that rows of one length make a batch
BATCH = 16  # rows


@dataclass
class ChatRows:
    heldout: list[Rendered]
    calibration: list[Rendered]


def chat_rows(path: Path, tokenizer: Tokenizer, sft: SftSection, heldout: int, calibration: int) -> ChatRows:
    """The first ``heldout`` chats of fine-tuning's validation rows, and ``calibration`` chats behind those
    rows. Raises ``UserError`` where there are too few.
    """
    room, held, others = sft.validation_rows * sft.sequence_length, [], []
    for row in rendered(path, tokenizer):
        if len(row.ids) > sft.sequence_length:
            continue
        room -= len(row.ids)
        (held if room >= 0 else others).append(row)
        if len(others) >= calibration and room < 0:
            break
    if not held:
        raise UserError(
            f"{path} has no chat of at most {sft.sequence_length} tokens to compare on: raise "
            "sft.sequence_length, or sft_data.chats if there are none"
        )
    if len(others) < calibration:
        raise UserError(
            f"{path} has {len(others)} chats to calibrate on behind the {len(held)} for validation, and "
            f"{calibration} are needed: lower quantize.calibration.chats or raise sft_data.chats"
        )
    return ChatRows(held[:heldout], others[:calibration])  # one was read although none was asked for


def calibration_batches(
    chats: Sequence[Rendered], pretrain_data: Path, section: Calibration
) -> list[torch.Tensor]:
    """int64 (B, T), a document or a window a row. Raises ``UserError`` where the recipe asks for none."""
    batches = equal_batches([row.ids[: section.length] for row in chats])
    if section.documents:
        stream = StreamBatches(pretrain_data, section.length)
        numbers = spread(stream.rows, min(section.documents, stream.rows))
        batches += [stream.take(numbers[at : at + BATCH]).tokens_BT for at in range(0, len(numbers), BATCH)]
    if not batches:
        raise UserError(
            "quantize.calibration has neither chats nor documents: raise one of them (the methods minmax and "
            "ssz look at the tokens too, for the record)"
        )
    return batches


def heldout_rows(chats: Sequence[Rendered], documents: Path, tokenizer: Tokenizer, section: HeldOut):
    """Groups of rows for perplexity: of chats what the model says itself, of documents everything."""
    table = pq.read_table(documents, columns=["id", "source", "text"]).to_pylist()
    start = tokenizer.ids_by_name[END_OF_TEXT]
    texts = [row["text"] for row in _in_turn(table, section.documents)]
    ids = [[start, *row[: section.length - 1]] for row in tokenizer.encode_batch(texts)]
    return {
        "chat": [Row(row.ids, list(map(bool, row.train))) for row in chats],
        "text": [Row(row) for row in ids if len(row) > 1],
    }


def prompts_of(chats: Sequence[Rendered], count: int) -> list[list[int]]:
    """What stands before a chat's first trained token."""
    return [row.ids[: int(np.argmax(row.train))] for row in chats[:count]]


def equal_batches(rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Rows of like length together, cut at their ends; nothing is padded."""
    by_length = defaultdict(list)
    for row in rows:
        length = len(row) // CUT * CUT or len(row)
        if length > 1:
            by_length[length].append(row[:length])
    return [
        torch.tensor(group[at : at + BATCH])
        for _, group in sorted(by_length.items())
        for at in range(0, len(group), BATCH)
    ]


def _in_turn(table: list[dict], count: int) -> list[dict]:
    """``count`` documents, one a source in turn, in the order of their ids."""
    by_source = defaultdict(list)
    for row in sorted(table, key=lambda row: row["id"]):
        by_source[row["source"]].append(row)
    longest = max(map(len, by_source.values()), default=0)
    turns = [rows[n] for n in range(longest) for _, rows in sorted(by_source.items()) if n < len(rows)]
    return turns[:count]
