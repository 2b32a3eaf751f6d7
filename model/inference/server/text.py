"""Tokens as text: stop strings cut out of a stream, and how log-probabilities name a token."""

import base64
from typing import Any

import numpy as np

from model.chat.tokenizer import Tokenizer


class StopCutter:
    """Passes text on up to the first stop string; what may be the beginning of one is held back."""

    def __init__(self, stops: list[str]):
        self._stops, self._held, self._found = stops, "", False

    def feed(self, text: str) -> str:
        """The part of the text so far that is certain to stand before every stop string."""
        if self._found or not self._stops:
            return "" if self._found else text
        text = self._held + text
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stops if stop in text]
        if found:
            self._found, self._held = True, ""
            return text[: min(found)[1]]  # the one that is complete first, as the sampler ends with it
        end = len(text) - max(_begun(text, stop) for stop in self._stops)
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        """What was held back, as nothing follows."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a beginning of the stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def json_number(logprob: float) -> float:
    """A log-probability that JSON can hold: -9999 for minus infinity, as OpenAI writes it."""
    return logprob if logprob > -9999.0 else -9999.0


def packed(array: np.ndarray) -> dict[str, Any]:
    """A whole array in JSON: its shape, its dtype, its bytes (little endian, row by row) as base64."""
    data = base64.b64encode(np.ascontiguousarray(array)).decode()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "data": data}


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; where its bytes are no text by themselves, ``bytes:\\xe2\\x80`` as OpenAI writes it."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
