"""A model behind the OpenAI interface as the policy of a filter.

async with httpx.AsyncClient(base_url="http://127.0.0.1:8000/v1/") as client:
    kept = Filter(search, chat_policy(client, "glm"), chat_policy(client, "glm"), path_checker(search))
"""

from typing import Any

import httpx

from environments.interface import Message
from environments.search.filters import Policy
from pipeline.errors import UserError


def chat_policy(client: httpx.AsyncClient, model: str, **settings: Any) -> Policy:
    """``settings`` go into each request (temperature, max_tokens). No answer raises ``UserError``."""

    async def policy(messages: list[Message], tools: tuple[dict, ...]) -> Message:
        body = {"model": model, "messages": messages, **settings}
        if tools:
            body["tools"] = list(tools)
        try:
            response = await client.post("chat/completions", json=body)
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"model {model} at {client.base_url} gave no answer ({error or type(error).__name__})"
            ) from None
        if not isinstance(message, dict):
            raise UserError(
                f"model {model} at {client.base_url} gave no message but {type(message).__name__}"
            )
        return {key: value for key, value in message.items() if value is not None}

    return policy
