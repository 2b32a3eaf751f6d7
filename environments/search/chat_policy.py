"""A model behind the OpenAI interface as the policy of a filter.

async with connect(settings) as client:
    policy = chat_policy(client, settings)
    kept = Filter(search, policy, policy, verifying_agent(search, policy))
"""

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from environments.episode import answer
from environments.interface import Message
from environments.search.filters import Policy
from pipeline.errors import UserError
from pipeline.openai import BUSY, headers, told
from pipeline.recipe.search import FilterModel

TRIES = 4  # of one request, while the server is away or busy
PAUSE = 1.0  # seconds before the second try, doubled from try to try
# What servers say of a dialogue that has become too long.
FULL = ("context_length_exceeded", "context length")


def connect(settings: FilterModel) -> httpx.AsyncClient:
    address = settings.base_url.rstrip("/") + "/"
    return httpx.AsyncClient(base_url=address, timeout=settings.seconds, headers=headers())


def chat_policy(client: httpx.AsyncClient, settings: FilterModel) -> Policy:
    """For one event loop. Says nothing where a dialogue has become too long for the model; raises
    ``UserError`` where the server gives no answer.
    """
    slots = asyncio.Semaphore(settings.at_once)

    async def policy(messages: list[Message], tools: tuple[dict, ...]) -> Message:
        body = {
            "model": settings.model, "messages": messages, "temperature": settings.temperature,
            "max_tokens": settings.max_tokens, **({"tools": list(tools)} if tools else {}),
        }  # fmt: skip
        async with slots:
            response = await _patiently(lambda: client.post("chat/completions", json=body), settings)
        begun = any(message["role"] == "assistant" for message in messages)
        if begun and response.status_code == 400 and any(mark in response.text for mark in FULL):
            return answer(None, "")
        if response.status_code != 200:
            raise UserError(
                f"model {settings.model} at {settings.base_url} refuses the request "
                f"({told(response.status_code)}): {response.text[:200]!r}"
            )
        try:
            message = response.json()["choices"][0]["message"]
            return {key: value for key, value in message.items() if value is not None}
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(
                f"model {settings.model} at {settings.base_url} answers, but not as the OpenAI interface "
                f"does: {response.text[:200]!r}"
            ) from None

    return policy


async def _patiently(post: Callable[[], Awaitable[httpx.Response]], settings: FilterModel) -> httpx.Response:
    reason = ""
    for number in range(TRIES):
        if number:
            await asyncio.sleep(PAUSE * 2 ** (number - 1))
        try:
            response = await post()
        except httpx.RequestError as error:
            reason = str(error) or type(error).__name__
            continue
        if response.status_code not in BUSY:
            return response
        reason = f"status {response.status_code}"
    raise UserError(
        f"model {settings.model} at {settings.base_url} does not answer ({reason}, {TRIES} tries): start it, "
        "or leave search_tasks.filter_model out"
    )
