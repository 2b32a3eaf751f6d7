"""Chats to packed rows with a loss mask: what supervised fine-tuning trains on."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.chat.renderer import Rendered, training_rows
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.errors import UserError
from tasks.training.batches import PackedBatches


@dataclass
class PackedChats:
    """Rows for training and for validation, and what was left out."""

    train: PackedBatches
    validation: PackedBatches
    facts: dict[str, int | float]


def read_chats(path: Path, tokenizer: Tokenizer, length: int, validation_rows: int) -> PackedChats:
    """Render and pack ``chats.jsonl`` into rows of ``length`` tokens; chats that are longer are left out.

    The first chats fill the validation rows and are not trained on. Raises ``UserError`` naming the line of a
    chat that cannot be rendered, or when nothing is left.
    """
    pad_id = tokenizer.ids_by_name[END_OF_TEXT]
    documents: list[Rendered] = []
    too_long = 0
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            for row in _render_line(path, number, line, tokenizer):
                if len(row.ids) <= length:
                    documents.append(row)
                else:
                    too_long += 1
    held = _first_tokens(documents, validation_rows * length)
    rest = documents[held:]
    if not held or not rest:
        raise UserError(
            f"{path} has {len(documents)} chats of at most {length} tokens, too few to train and validate: "
            "raise sft.sequence_length or sft_data.chats"
        )
    facts = {"sft/documents": len(rest), "sft/too_long": too_long, "sft/heldout_documents": held}
    train = pack(rest, length, pad_id, f"{path.parent.name}/packed")
    validation = pack(documents[:held], length, pad_id, f"{path.parent.name}/validation")
    facts["sft/packing_efficiency"] = sum(len(row.ids) for row in rest) / (train.rows * length)
    return PackedChats(train, validation, facts)


def _render_line(path: Path, number: int, line: str, tokenizer: Tokenizer) -> list[Rendered]:
    try:
        chat = json.loads(line)
        return training_rows(tokenizer, chat["messages"], chat.get("tools"), chat["mode"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} line {number} is not a chat that can be rendered: {error}") from error


def _first_tokens(documents: list[Rendered], tokens: int) -> int:
    """How many leading documents fill ``tokens``."""
    total = 0
    for number, row in enumerate(documents):
        total += len(row.ids)
        if total > tokens:
            return number
    return len(documents)


def pack(documents: list[Rendered], length: int, pad_id: int, name: str) -> PackedBatches:
    """Best-fit-decreasing packing. A document sees only itself; padding sees itself and pays no loss."""
    bins: list[list[Rendered]] = []
    by_room: dict[int, list[int]] = {}  # free tokens -> bins with exactly that room
    for row in sorted(documents, key=lambda row: -len(row.ids)):
        size = len(row.ids)
        room = next((free for free in range(size, length + 1) if by_room.get(free)), None)
        if room is None:
            bins.append([])
            place, room = len(bins) - 1, length
        else:
            place = by_room[room].pop()
        bins[place].append(row)
        by_room.setdefault(room - size, []).append(place)
    tokens = np.full((len(bins), length), pad_id, dtype=np.int32)
    starts = np.tile(np.arange(length, dtype=np.int32), (len(bins), 1))
    trained = np.zeros((len(bins), length), dtype=bool)
    for place, rows in enumerate(bins):
        at = 0
        for row in rows:
            end = at + len(row.ids)
            tokens[place, at:end], starts[place, at:end], trained[place, at:end] = row.ids, at, row.train
            at = end
    return PackedBatches(tokens, starts, name, trained)
