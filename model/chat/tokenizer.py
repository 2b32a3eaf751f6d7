"""Text to token ids and back, with special tokens that no text can forge."""

import codecs
import json
import re
from pathlib import Path
from typing import Self

import tokenizers

from model.chat.tokens import STOP_TOKENS
from model.config import SPECIAL_TOKENS

# Longest first, as in transformers: a name takes precedence over the names that it contains.
SPECIAL_NAMES = re.compile("|".join(map(re.escape, sorted(SPECIAL_TOKENS, key=len, reverse=True))))
_NOT_UNICODE = "text cannot be encoded: it is not valid Unicode (a lone surrogate); replace that character"


class Tokenizer:
    """A byte-level BPE with GLM's special tokens.

    ``encode`` never yields a special token: text such as ``<|user|>`` in a document or a message becomes
    ordinary tokens, split where ``apply_chat_template(..., sanitize_control_tokens=True)`` of transformers
    splits it. Special tokens are written by name, through ``ids_by_name``.
    """

    def __init__(self, definition: str):
        """``definition`` is the JSON of a tokenizer.json. Raises ``ValueError`` where it does not fit."""
        try:
            full = tokenizers.Tokenizer.from_str(definition)
            # The same vocabulary and merges, without the added tokens: it can only see ordinary text.
            self._plain = tokenizers.Tokenizer.from_str(
                json.dumps(json.loads(definition) | {"added_tokens": []})
            )
        except Exception as error:  # the Rust library raises bare Exception
            raise ValueError(
                f"this is not a tokenizer.json that the tokenizers library reads: {error}"
            ) from error
        ids = {name: full.token_to_id(name) for name in SPECIAL_TOKENS}
        missing = [name for name, token_id in ids.items() if token_id is None]
        if missing:
            raise ValueError(
                f"the tokenizer lacks the special tokens {' '.join(missing)}; train it again with them"
            )
        self.ids_by_name: dict[str, int] = ids
        self.names_by_id: dict[int, str] = {token_id: name for name, token_id in ids.items()}
        self.stop_ids: frozenset[int] = frozenset(ids[name] for name in STOP_TOKENS)
        self._bytes = _token_bytes(full)
        self.vocab_size: int = len(self._bytes)
        forged = [name for name in SPECIAL_TOKENS if ids[name] in self._plain_ids(name)]
        if forged:
            raise ValueError(f"the tokenizer makes special tokens from plain text: {' '.join(forged)}")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read ``folder/tokenizer.json``. Raises ``ValueError`` with the path where that fails."""
        path = Path(folder) / "tokenizer.json"
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot load the tokenizer {path}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of ordinary text; none of them is special. Raises ``ValueError`` for a lone surrogate."""
        ids: list[int] = []
        for piece in _pieces(text):
            ids += self._plain_ids(piece)
        return ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """``encode`` of each text, in parallel over the cores that the tokenizers library is given."""
        pieces = [_pieces(text) for text in texts]
        try:
            flat = iter(self._plain.encode_batch_fast([piece for parts in pieces for piece in parts]))
        except TypeError as error:
            raise ValueError(_NOT_UNICODE) from error
        return [[token for _ in parts for token in next(flat).ids] for parts in pieces]

    def decode(self, ids: list[int]) -> str:
        """The text of the ids, special tokens by their names, bytes that are not UTF-8 as U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for: those of U+FFFD for an id behind the vocabulary, which a model
        can sample whose embedding is padded to a round size. Raises ``ValueError`` for a negative id.
        """
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative, so it is no token")
        return self._bytes[token_id] if token_id < self.vocab_size else "\ufffd".encode()

    def _plain_ids(self, text: str) -> list[int]:
        try:
            return self._plain.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            raise ValueError(_NOT_UNICODE) from error


class TextDecoder:
    """Joins token bytes to text as they come; a character is given out when its last byte is there."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left: U+FFFD for an unfinished character. The decoder is as new afterwards."""
        return self._decoder.decode(b"", final=True)


def _pieces(text: str) -> list[str]:
    """The text cut at names of special tokens, which become pieces of their own."""
    pieces, position = [], 0
    for match in SPECIAL_NAMES.finditer(text):
        pieces += [text[position : match.start()], match.group()]
        position = match.end()
    return [piece for piece in [*pieces, text[position:]] if piece]


def _token_bytes(tokenizer: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of each token id; added tokens are written as they stand."""
    byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        if token_id in added:
            table[token_id] = token.encode()
        elif all(character in byte_of for character in token):
            table[token_id] = bytes(byte_of[character] for character in token)
        else:
            raise ValueError(f"the tokenizer is not byte-level: its token {token!r} stands for no bytes")
    return table


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's convention)."""
    shown = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]
