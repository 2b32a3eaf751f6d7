"""Text to token ids in bulk, and the files that hold them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from pipeline.recipe.model import END_OF_TEXT

BATCH = 64  # texts encoded at once, on all cores


class Encoder:
    """The tokenizer of an artifact folder."""

    def __init__(self, folder: Path):
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # A document that quotes "<|user|>" does not get the control token.
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size()
        self.dtype = np.dtype("<u2" if self.vocab_size <= 2**16 else "<u4")
        self.end = self.special(END_OF_TEXT)

    def special(self, token: str) -> int:
        return self._tokenizer.token_to_id(token)

    def encode(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, in order; nothing is added."""
        batch: list[str] = []
        for text in texts:
            batch.append(text)
            if len(batch) == BATCH:
                yield from self._encode_batch(batch)
                batch = []
        yield from self._encode_batch(batch)

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _encode_batch(self, batch: list[str]) -> Iterator[np.ndarray]:
        for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=self.dtype)


def write_stream(folder: Path, name: str, documents: list[np.ndarray]) -> None:
    """``<name>.bin``, the documents end to end, and int64 ``<name>_offsets.npy``, where each starts.

    The offsets of "tokens" are ``offsets.npy``.
    """
    sizes = [len(document) for document in documents]
    offsets = (
        np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if sizes else np.empty(0, np.int64)
    )
    with open(folder / f"{name}.bin", "wb") as file:
        for document in documents:
            file.write(document.tobytes())
    np.save(folder / ("offsets.npy" if name == "tokens" else f"{name}_offsets.npy"), offsets)


def write_meta(folder: Path, meta: dict) -> None:
    (folder / "meta.json").write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n")
