"""One choice of a chat answer, from its tokens: OpenAI's deltas while it grows, its message at the end."""

import json
from typing import Any

from model.chat.parser import Delta, TokenParser
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_THINK
from model.inference.request import Completion, Token
from model.inference.server.text import StopCutter, json_number, token_name


class ChatChoice:
    """``forced``: tokens that were put behind the generation prompt and belong to the answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: list[dict],
        thinking: bool,
        forced: list[int],
        stops: list[str],
        call_prefix: str,
    ):
        self._parser = TokenParser(tokenizer, tools, thinking)
        self._cutters = {kind: StopCutter(stops) for kind in ("reasoning_content", "content")}
        self._end_think = tokenizer.ids_by_name[END_THINK] if thinking else None
        self._call_prefix = call_prefix
        self.reasoning_tokens = 0
        self._calls: list[dict[str, Any]] = []
        self._text = dict.fromkeys(self._cutters, "")
        for token_id in forced:
            self._parser.feed(token_id)

    def feed(self, token: Token) -> list[Delta]:
        if self._end_think is not None:
            self.reasoning_tokens += 1
            if token.id == self._end_think:
                self._end_think = None
        return self._deltas(self._parser.feed(token.id))

    def end(self, completion: Completion) -> tuple[list[Delta], str]:
        """The last deltas, and the finish reason."""
        deltas = self._deltas(self._parser.flush())
        for kind, cutter in self._cutters.items():
            if text := cutter.flush():
                deltas.append(self._said(kind, text))
        if completion.finish == "length":
            return deltas, "length"
        return deltas, "tool_calls" if self._calls else "stop"

    @property
    def message(self) -> dict[str, Any]:
        """All of it, in OpenAI's form: arguments are JSON text."""
        reasoning, content = self._text["reasoning_content"], self._text["content"]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = self._calls
            message["content"] = content or None
        return message

    def _deltas(self, parsed: list[Delta]) -> list[Delta]:
        deltas: list[Delta] = []
        for delta in parsed:
            for kind, value in delta.items():
                if kind == "tool_calls":
                    deltas += [part for call in value for part in self._call(call)]
                elif text := self._cutters[kind].feed(value):
                    deltas.append(self._said(kind, text))
        return deltas

    def _said(self, kind: str, text: str) -> Delta:
        self._text[kind] += text
        return {kind: text}

    def _call(self, call: dict[str, Any]) -> list[Delta]:
        """A call that is complete, as the two deltas that clients expect: its name, then its arguments."""
        name = call["function"]["name"]
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        # Unique over a whole dialogue, as results refer to it.
        head = {"id": f"{self._call_prefix}_{call['index']}", "type": "function"}
        self._calls.append({**head, "function": {"name": name, "arguments": arguments}})
        index = {"index": call["index"]}
        return [
            {"tool_calls": [{**index, **head, "function": {"name": name, "arguments": ""}}]},
            {"tool_calls": [{**index, "function": {"arguments": arguments}}]},
        ]


class TokenRecord:
    """Ids, weight versions and log-probabilities of the tokens since they were last taken."""

    def __init__(self, tokenizer: Tokenizer, top: int | None):
        """``top``: how many alternatives to name; None without log-probabilities."""
        self._tokenizer, self._top = tokenizer, top
        self._tokens: list[Token] = []

    def add(self, token: Token) -> None:
        self._tokens.append(token)

    def take(self) -> dict[str, Any]:
        """Fields of a choice."""
        tokens, self._tokens = self._tokens, []
        fields: dict[str, Any] = {
            "token_ids": [token.id for token in tokens],
            "weight_versions": [token.version for token in tokens],
        }
        if self._top is not None:
            fields["logprobs"] = {"content": [self._entry(token) for token in tokens]}
        return fields

    def _entry(self, token: Token) -> dict[str, Any]:
        alternatives = [self._named(token_id, logprob) for token_id, logprob in token.top[: self._top]]
        return {**self._named(token.id, token.logprob), "top_logprobs": alternatives}

    def _named(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {
            "token": token_name(self._tokenizer, token_id),
            "logprob": json_number(logprob),
            "bytes": list(data),
        }
