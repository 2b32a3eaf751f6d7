"""What all who ask a model behind the OpenAI interface share: their key, and which answers mean "later"."""

import os

from pipeline.errors import UserError

KEY = "OPENAI_API_KEY"
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


def headers() -> dict[str, str]:
    """Of a request: the key of the environment, if any."""
    key = os.environ.get(KEY, "")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{KEY} holds what no HTTP header can, such as the end of a line: set it again")
    return {"Authorization": f"Bearer {key}"} if key else {}


def told(status: int) -> str:
    """A refusal's HTTP status, in words."""
    return f"status {status}" + (f", the key is taken from {KEY}" if status in (401, 403) else "")
