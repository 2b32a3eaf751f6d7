"""POST /v1/completions: a text or token ids in, their continuation out, whole or as it is sampled."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from model.chat.tokenizer import TextDecoder, Tokenizer
from model.chat.tokens import END_OF_TEXT
from model.inference.request import Completion, Token
from model.inference.server.chat import usage
from model.inference.server.connections import respond
from model.inference.server.errors import ApiError
from model.inference.server.generation import Generation, Job, Server, sampling_params
from model.inference.server.request_body import read_body
from model.inference.server.schemas import CompletionBody
from model.inference.server.text import StopCutter, json_number, packed, token_name


async def completions(request: Request) -> Response:
    server: Server = request.app.state.server
    body = await read_body(request, CompletionBody)
    if body.stream and body.echo and body.logprobs is not None:
        raise ApiError(422, "echo with logprobs cannot be streamed; leave out one of the three", param="echo")
    if body.return_routed_experts and not server.checkpoints.loaded.engine.records_experts:
        raise ApiError(
            422, "This server does not record experts: start it with --record-experts",
            param="return_routed_experts",
        )  # fmt: skip
    return await respond(request, _begin(server, body), body.stream)


async def _begin(server: Server, body: CompletionBody) -> "TextAnswer":
    generation = await server.enter(body, len(body.prompt) * body.n)
    try:
        prompts = [await _prompt_ids(server, generation, prompt) for prompt in body.prompt]
        answer = TextAnswer(generation, body, prompts)
        answer.start(server)
    except BaseException:
        await generation.close()
        raise
    return answer


async def _prompt_ids(server: Server, generation: Generation, prompt: str | list[int]) -> list[int]:
    tokenizer = generation.loaded.tokenizer
    if isinstance(prompt, str):
        server.check_size(generation.loaded, prompt)
        prompt = await asyncio.to_thread(tokenizer.encode, prompt)
    return prompt or [tokenizer.ids_by_name[END_OF_TEXT]]  # a text begins after the end of another


class TextAnswer:
    """The answer to one request: choice ``p * n + i`` is the i-th continuation of prompt p."""

    def __init__(self, generation: Generation, body: CompletionBody, prompts: list[list[int]]):
        self._generation, self._body, self._prompts = generation, body, prompts
        self.close = generation.close
        loaded = generation.loaded
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": loaded.name,
        }
        self._choices = [
            TextChoice(loaded.tokenizer, prompt, body) for prompt in prompts for _ in range(body.n)
        ]
        self._completions: list[Completion] = []

    def start(self, server: Server) -> None:
        body, loaded = self._body, self._generation.loaded
        fields = {
            "stop_ids": loaded.tokenizer.stop_ids | set(body.stop_token_ids),
            "top_logprobs": body.logprobs or 0,
            "prompt_logprobs": body.echo and body.logprobs is not None,
        }
        jobs = []
        for prompt in self._prompts:
            room = server.room(loaded, len(prompt), body.max_tokens)
            jobs += [
                Job(prompt, sampling_params(body, number, max_new_tokens=room, **fields))
                for number in range(body.n)
            ]
        self._generation.start(jobs, body.stream)

    async def whole(self) -> dict[str, Any]:
        self._completions = await self._generation.ends()
        choices = []
        for choice, completion in zip(self._choices, self._completions, strict=True):
            for token in completion.tokens:
                choice.feed(token)
            choice.end(completion)
            choices.append({"index": len(choices), "finish_reason": completion.finish, **choice.take()})
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream. Every chunk carries the tokens since the one before it."""
        if self._body.echo:
            for number in range(len(self._choices)):
                yield self._chunk(number)
        async for number, item in self._generation.items():
            choice = self._choices[number]
            if isinstance(item, Token):
                choice.feed(item)
                if choice.has_text:
                    yield self._chunk(number)
            else:
                self._completions.append(item)
                choice.end(item)
                yield self._chunk(number, item.finish)
        if self._body.stream_options.include_usage:
            yield {**self._head, "choices": [], "usage": self._usage()}

    def _chunk(self, number: int, reason: str | None = None) -> dict[str, Any]:
        fields = self._choices[number].take()
        return {**self._head, "choices": [{"index": number, "finish_reason": reason, **fields}]}

    def _usage(self) -> dict[str, Any]:
        return usage(sum(map(len, self._prompts)), self._completions)


class TextChoice:
    """Text and tokens of one continuation, taken in parts or as a whole."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], body: CompletionBody):
        self._tokenizer, self._prompt, self._body = tokenizer, prompt, body
        self._decoder, self._cutter = TextDecoder(), StopCutter(body.stop)
        self._stop_ids = tokenizer.stop_ids | set(body.stop_token_ids)
        self._text = tokenizer.decode(prompt) if body.echo else ""
        self._tokens: list[Token] = []
        self._scored: list[Token | int] = []  # those with log-probabilities to show; the first has none
        self._offset = 0
        self._first = True
        self._experts: dict[str, Any] | None = None

    @property
    def has_text(self) -> bool:
        return bool(self._text)

    def feed(self, token: Token) -> None:
        self._tokens.append(token)
        if token.id not in self._stop_ids:
            self._text += self._cutter.feed(self._decoder.feed(self._tokenizer.token_bytes(token.id)))

    def end(self, completion: Completion) -> None:
        self._text += self._cutter.feed(self._decoder.flush()) + self._cutter.flush()
        if self._body.return_routed_experts and completion.experts is not None:
            self._experts = packed(completion.experts)
        if self._body.echo and self._body.logprobs is not None:
            self._scored = [self._prompt[0], *completion.prompt]

    def take(self) -> dict[str, Any]:
        """Fields of a choice: what is new since the last time."""
        text, self._text = self._text, ""
        tokens, self._tokens = self._tokens, []
        scored, self._scored = self._scored, []
        fields: dict[str, Any] = {
            "text": text,
            "token_ids": [token.id for token in tokens],
            "weight_versions": [token.version for token in tokens],
            "logprobs": None,
        }
        if self._body.logprobs is not None:
            fields["logprobs"] = self._logprobs([*scored, *tokens])
        if self._first and self._body.return_token_ids:
            fields["prompt_token_ids"] = self._prompt
        if self._experts is not None:
            fields["routed_experts"] = self._experts
        self._first = False
        return fields

    def _logprobs(self, tokens: list[Token | int]) -> dict[str, list]:
        """In the form of OpenAI's older API; without a log-probability for the first token of a prompt."""
        table: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            token_id = token if isinstance(token, int) else token.id
            table["tokens"].append(token_name(self._tokenizer, token_id))
            table["text_offset"].append(self._offset)
            self._offset += len(self._tokenizer.token_bytes(token_id).decode("utf-8", errors="ignore"))
            if isinstance(token, int):
                table["token_logprobs"].append(None)
                table["top_logprobs"].append(None)
                continue
            table["token_logprobs"].append(json_number(token.logprob))
            best = {token_name(self._tokenizer, n): json_number(logprob) for n, logprob in token.top}
            best[table["tokens"][-1]] = json_number(token.logprob)
            table["top_logprobs"].append(best)
        return table
