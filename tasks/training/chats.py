"""Chats to packed rows with a loss mask: what supervised fine-tuning trains on."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.chat.renderer import Rendered, training_rows
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.errors import UserError
from pipeline.packing import best_fit, lay_out
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
    everything = list(rendered(path, tokenizer))
    documents = [row for row in everything if len(row.ids) <= length]
    too_long = len(everything) - len(documents)
    held = _first_tokens(documents, validation_rows * length)
    rest = documents[held:]
    if not held or not rest:
        raise UserError(
            f"{path} has {len(documents)} chats of at most {length} tokens, too few to train and validate: "
            "raise sft.sequence_length or sft_data.chats"
        )
    facts = {"sft/documents": len(rest), "sft/too_long": too_long, "sft/validation_documents": held}
    train = pack(rest, length, pad_id, f"{path.parent.name}/packed")
    validation = pack(documents[:held], length, pad_id, f"{path.parent.name}/validation")
    facts["sft/packing_efficiency"] = sum(len(row.ids) for row in rest) / (train.rows * length)
    return PackedChats(train, validation, facts)


def rendered(path: Path, tokenizer: Tokenizer) -> Iterator[Rendered]:
    """The rows of ``chats.jsonl``, in its order."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            yield from _render_line(path, number, line, tokenizer)


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
    """Packed rows of whole documents. A document sees only itself; padding sees itself and pays no loss."""
    rows = best_fit([len(document.ids) for document in documents], length)
    ids = [np.array(document.ids, np.int32) for document in documents]
    trained = [np.array(document.train) for document in documents]
    tokens_NL, starts_NL = lay_out(ids, rows, length, pad_id)
    trained_NL, _ = lay_out(trained, rows, length, False)
    return PackedBatches(tokens_NL, starts_NL, name, trained_NL)
