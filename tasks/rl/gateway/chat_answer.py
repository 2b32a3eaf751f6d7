"""An agent's chat request, and the gateway's reply in OpenAI's form, whole or as a stream."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from pydantic import model_validator

from model.chat.tokens import Thinking
from model.inference.server.schemas import ChatBody
from tasks.rl.gateway.gateway import Reply
from tasks.rl.gateway.session import Message

MODEL = "policy"


class AgentBody(ChatBody):
    """What an agent sends. How tokens are drawn is the trainer's to say: temperature, top_p, top_k, min_p,
    seed and the model's name are not heeded.
    """

    @model_validator(mode="after")
    def _one_turn(self) -> "AgentBody":
        refused = {
            "n": self.n != 1, "stop": bool(self.stop), "stop_token_ids": bool(self.stop_token_ids),
            "logprobs": self.logprobs, "tool_choice": self.tool_choice not in ("auto", "none"),
            "parallel_tool_calls": not self.parallel_tool_calls,
        }  # fmt: skip
        for name, asked in refused.items():
            if asked:
                raise ValueError(
                    f"{name} is not supported: an answer is one turn, whole, as the policy samples it; "
                    "leave it out"
                )
        return self

    def thinking(self, session: Thinking) -> Thinking:
        """The session's, unless the request has its own."""
        if "chat_template_kwargs" not in self.model_fields_set:
            return session
        options = self.chat_template_kwargs
        return Thinking(options.enable_thinking, options.clear_thinking)

    @property
    def rows(self) -> list[Message]:
        """The messages, with text that comes in parts as one."""
        rows = [message.for_renderer() for message in self.messages]
        for row in rows:
            if isinstance(row.get("content"), list):
                row["content"] = "".join(part["text"] for part in row["content"])
        return rows

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def offered_tools(self) -> list[dict] | None:
        return None if self.tool_choice == "none" else self.tools or None


class ChatAnswer:
    """``number`` of the answer in its session, for the names of its calls."""

    def __init__(self, reply: Reply, number: int, usage_at_end: bool):
        self._reply, self._usage_at_end = reply, usage_at_end
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": MODEL}
        said = reply.message
        self._message: dict[str, Any] = {"role": "assistant", "content": said.get("content") or ""}
        if said.get("reasoning_content"):
            self._message["reasoning_content"] = said["reasoning_content"]
        if calls := said.get("tool_calls"):
            self._message["tool_calls"] = [
                _call(call["function"], f"call_{number}_{place}") for place, call in enumerate(calls)
            ]
            self._message["content"] = self._message["content"] or None

    async def whole(self) -> dict[str, Any]:
        choice = {
            "index": 0, "message": self._message, "finish_reason": self._reply.finish, "logprobs": None,
        }  # fmt: skip
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The answer is there as a whole: its parts follow one another at once."""
        yield self._chunk({"role": "assistant", "content": ""})
        for name in ("reasoning_content", "content"):
            if text := self._message.get(name):
                yield self._chunk({name: text})
        for place, call in enumerate(self._message.get("tool_calls", ())):
            yield self._chunk({"tool_calls": [{"index": place, **call}]})
        yield self._chunk({}, self._reply.finish)
        if self._usage_at_end:
            yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}

    async def close(self) -> None:
        """Nothing is held."""

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _usage(self) -> dict[str, int]:
        read, sampled = self._reply.prompt_tokens, self._reply.tokens
        return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def _call(function: dict[str, Any], name: str) -> dict[str, Any]:
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {"id": name, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
