"""What all who ask a model behind the OpenAI interface share: their key, and which answers mean "later"."""

import os

KEY = "OPENAI_API_KEY"
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


def headers() -> dict[str, str]:
    """Of a request: the key of the environment, if any."""
    key = os.environ.get(KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}
