"""What every section of a recipe shares: unknown keys are errors, so are ``.inf`` and ``.nan``, and values do
not change after loading.
"""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no port between 0 and 65535, or half a bracket
        usable = False
    if not usable:
        raise ValueError(f"{text!r} is no address: it is to be like http://127.0.0.1:8000/v1")
    return text


Address = Annotated[str, AfterValidator(_address)]  # of an OpenAI interface, up to /v1
