"""POST /v1/chat/completions: messages in, an assistant's message out, whole or as it is sampled."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from model.chat.renderer import render
from model.chat.tokens import CALL, END_CALL, Thinking
from model.inference.request import Completion, Token
from model.inference.server.checkpoints import Loaded
from model.inference.server.choice import ChatChoice, TokenRecord
from model.inference.server.connections import respond
from model.inference.server.errors import ApiError
from model.inference.server.generation import Generation, Job, Server, sampling_params
from model.inference.server.request_body import read_body
from model.inference.server.schemas import ChatBody, ChatMessage, NamedTool, TemplateOptions


async def chat_completions(request: Request) -> Response:
    server: Server = request.app.state.server
    body = await read_body(request, ChatBody)
    return await respond(request, _begin(server, body), body.stream)


async def _begin(server: Server, body: ChatBody) -> "ChatAnswer":
    generation = await server.enter(body, body.n)
    try:
        answer = ChatAnswer(generation, body, await prompt_of(server, generation.loaded, body))
        answer.start(server)
    except BaseException:
        await generation.close()
        raise
    return answer


async def prompt_of(server: Server, loaded: Loaded, body: ChatBody) -> list[int]:
    tools = [] if body.tool_choice == "none" else body.tools
    forced = _forced(loaded, body)
    thinking = body.chat_template_kwargs
    if forced:  # a call that must come cannot wait for the end of a thought
        thinking = thinking.model_copy(update={"enable_thinking": False})
    return await render_ids(server, loaded, body.messages, tools, thinking, True) + forced


async def render_ids(
    server: Server,
    loaded: Loaded,
    messages: list[ChatMessage],
    tools: list[dict],
    options: TemplateOptions,
    generation_prompt: bool,
) -> list[int]:
    """The tokens of a dialogue. Raises ``ApiError`` for one that is too long or cannot be rendered."""
    rows = [message.for_renderer() for message in messages]
    server.check_size(loaded, "".join(str(row.get("content", "")) for row in rows))
    thinking = Thinking(options.enable_thinking, options.clear_thinking)
    try:
        rendered = await asyncio.to_thread(
            render, loaded.tokenizer, rows, tools or None, thinking, generation_prompt
        )
    except ValueError as error:
        raise ApiError(422, str(error), param="messages") from error
    return rendered.ids


def _forced(loaded: Loaded, body: ChatBody) -> list[int]:
    """Tokens behind the prompt that leave the model nothing but a call: ``required`` or a tool's name."""
    call = loaded.tokenizer.ids_by_name[CALL]
    if isinstance(body.tool_choice, NamedTool):
        return [call, *loaded.tokenizer.encode(body.tool_choice.function.name)]
    return [call] if body.tool_choice == "required" else []


class ChatAnswer:
    """The answer to one request, with its n choices."""

    def __init__(self, generation: Generation, body: ChatBody, prompt: list[int]):
        self._generation, self._body, self._prompt = generation, body, prompt
        self.close = generation.close
        loaded = generation.loaded
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._head = {"id": self._id, "created": int(time.time()), "model": loaded.name}
        tools = [] if body.tool_choice == "none" else body.tools
        forced = _forced(loaded, body)
        thinking = body.chat_template_kwargs.enable_thinking and not forced
        top = body.top_logprobs if body.logprobs else None
        self._choices = [
            ChatChoice(
                loaded.tokenizer, tools, thinking, forced, body.stop, f"call_{self._id[-24:]}_{number}"
            )
            for number in range(body.n)
        ]
        self._records = [TokenRecord(loaded.tokenizer, top) for _ in range(body.n)]
        self._completions: dict[int, Completion] = {}

    def start(self, server: Server) -> None:
        body, loaded = self._body, self._generation.loaded
        stop_ids = loaded.tokenizer.stop_ids | set(body.stop_token_ids)
        if not body.parallel_tool_calls:
            stop_ids |= {loaded.tokenizer.ids_by_name[END_CALL]}
        room = server.room(loaded, len(self._prompt), body.max_completion_tokens or body.max_tokens)
        if room < 1:
            raise ApiError(
                400, f"The prompt fills the model's context of {loaded.context} tokens", param="messages",
                code="context_length_exceeded",
            )  # fmt: skip
        fields = {
            "max_new_tokens": room,
            "stop_ids": stop_ids,
            "top_logprobs": body.top_logprobs,
        }
        self._generation.start(
            (Job(self._prompt, sampling_params(body, number, **fields)) for number in range(body.n)),
            body.stream,
        )

    async def whole(self) -> dict[str, Any]:
        self._completions = dict(enumerate(await self._generation.ends()))
        choices = []
        for number, completion in self._completions.items():
            choice, record = self._choices[number], self._records[number]
            for token in completion.tokens:
                choice.feed(token)
                record.add(token)
            reason = choice.end(completion)[1]
            choices.append(
                {
                    "index": number, "message": choice.message, "finish_reason": reason, "logprobs": None,
                    **record.take(),
                }
            )  # fmt: skip
        answer = {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage()}
        return answer | ({"prompt_token_ids": self._prompt} if self._body.return_token_ids else {})

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream. Every chunk carries the tokens since the one before it."""
        for number in range(self._body.n):
            yield self._chunk(number, {"role": "assistant", "content": ""})
        async for number, item in self._generation.items():
            choice, reason = self._choices[number], None
            if isinstance(item, Token):
                self._records[number].add(item)
                deltas = choice.feed(item)
            else:
                self._completions[number] = item
                deltas, reason = choice.end(item)
            for delta in deltas:
                yield self._chunk(number, delta)
            if reason is not None:
                yield self._chunk(number, {}, reason)
        if self._body.stream_options.include_usage:
            yield self._event([]) | {"usage": self._usage()}

    def _chunk(self, number: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "finish_reason": reason, "logprobs": None}
        event = self._event([choice | self._records[number].take()])
        if self._body.return_token_ids and "role" in delta and number == 0:
            event["prompt_token_ids"] = self._prompt
        return event

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def _usage(self) -> dict[str, Any]:
        reasoning = sum(choice.reasoning_tokens for choice in self._choices)
        return usage(len(self._prompt), self._completions.values()) | {
            "completion_tokens_details": {"reasoning_tokens": reasoning}
        }


def usage(prompt_tokens: int, completions) -> dict[str, Any]:
    """Token counts in OpenAI's form."""
    sampled = sum(len(completion.tokens) for completion in completions)
    cached = max((completion.cached_tokens for completion in completions), default=0)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
