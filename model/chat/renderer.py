"""Messages to token ids and loss mask, in GLM-5's chat format (template facts of the released model).

    [gMASK]<sop> <|system|>tools <|system|>text <|user|>text <|assistant|><think>reasoning</think>content
    <tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call> <|observation|><tool_response>...

(without the spaces and line breaks). ``chat_template.jinja`` beside this file renders the same.

What is trained: exactly the tokens that the model itself has to sample. These are the reasoning and the
``</think>`` that closes it, the content, the tool calls, and the next role token, which ends the turn. Role
tokens at the start of a turn, ``<think>``, a bare ``</think>`` (the generation prompt of a turn without
thinking) and tool results are not trained, nor is a message with ``"train": False``, which stays in context.

Prefix property. With ``clear=False`` (mode "preserved") the tokens of the first k messages are a prefix of
those of the first k + 1, always. With ``clear=True`` ("interleaved", "off") they are, except where message
k + 1 is a user message and an assistant message since the user message before it has reasoning: that
reasoning is then dropped from the middle. So dialogues without reasoning, the only ones that "off" samples,
are append-only too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.chat.tokenizer import Tokenizer
from model.chat.tokens import (
    ASSISTANT,
    CALL,
    END_CALL,
    END_KEY,
    END_RESPONSE,
    END_THINK,
    END_VALUE,
    KEY,
    OBSERVATION,
    RESPONSE,
    ROLE_TOKENS,
    START,
    SYSTEM,
    THINK,
    USER,
    VALUE,
    Thinking,
    thinking_of,
)

Message = dict[str, Any]

TOOLS_BEFORE = "# Tools\nFunctions you may call, one JSON schema a line:\n<tools>\n"
# Tuples are special tokens: the reminder shows the very tokens that a call consists of.
TOOLS_AFTER = (
    "</tools>\nForm of a call, key and value once per argument:\n",
    (CALL,), "name", (KEY,), "key", (END_KEY, VALUE), "value", (END_VALUE, END_CALL),
)  # fmt: skip


@dataclass(frozen=True)
class Rendered:
    """Token ids, and for each whether it is a target of the loss. Both lists have the same length."""

    ids: list[int]
    train: list[bool]


@dataclass(frozen=True)
class SampledTurn:
    """What a model sampled behind a generation prompt, without the stop token. ``thinking``: which prompt."""

    ids: Sequence[int]
    thinking: bool


def render(
    tokenizer: Tokenizer,
    messages: list[Message],
    tools: list[dict] | None = None,
    mode: str | Thinking = "interleaved",
    generation_prompt: bool = False,
    sampled: Mapping[int, SampledTurn] | None = None,
) -> Rendered:
    """The tokens of a dialogue, equal to those of ``chat_template.jinja``.

    ``messages`` are in OpenAI's form (``role``, ``content``, ``reasoning_content``, ``tool_calls``),
    ``tools`` are function schemas. Special tokens come from the format alone: names of them in a message are
    plain text. ``generation_prompt`` adds the opening of the assistant's next turn. ``sampled`` gives the
    tokens of assistant messages, by their index, that were sampled: those stand in the place of the text's,
    since another cut of the same text would not be what the model wrote. Raises ``ValueError`` for a message
    that cannot be rendered, with its index.
    """
    thinking = thinking_of(mode)
    writer = _write(tokenizer, messages, tools, thinking, train_from=0, sampled=sampled or {})
    if generation_prompt:
        writer.special(ASSISTANT, THINK if thinking.enabled else END_THINK)
    return Rendered(writer.ids, writer.train)


def training_rows(
    tokenizer: Tokenizer,
    messages: list[Message],
    tools: list[dict] | None = None,
    mode: str | Thinking = "interleaved",
) -> list[Rendered]:
    """The dialogue as rows in which each assistant turn stands in the context in which it is sampled later.

    One row where rendering is append-only. Otherwise one row for each user message, since the reasoning of
    earlier turns is gone when the next one is answered: a row trains only the turns after its last user
    message. The stop token after a row's last turn is added and trained. Rows training nothing are left out.
    """
    thinking = thinking_of(mode)
    _check(messages)
    last_user = _last_user(messages)
    rewritten = thinking.clear and any(m.get("reasoning_content") for m in messages[: max(last_user, 0)])
    cuts = _later_questions(messages) if rewritten else []
    rows = []
    for start, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        writer = _write(tokenizer, messages[:end], tools, thinking, train_from=start)
        last = messages[end - 1]
        if last["role"] == "assistant":
            writer.special(_stop_token(last), train=last.get("train", True))
        if any(writer.train):
            rows.append(Rendered(writer.ids, writer.train))
    return rows


@dataclass
class _Writer:
    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    train: list[bool] = field(default_factory=list)

    def special(self, *names: str, train: bool = False) -> None:
        self.ids += [self.tokenizer.ids_by_name[name] for name in names]
        self.train += [train] * len(names)

    def text(self, text: str, train: bool = False) -> None:
        ids = self.tokenizer.encode(text)
        self.ids += ids
        self.train += [train] * len(ids)


def _write(
    tokenizer: Tokenizer,
    messages: list[Message],
    tools: list[dict] | None,
    thinking: Thinking,
    train_from: int,
    sampled: Mapping[int, SampledTurn] | None = None,
) -> _Writer:
    _check(messages)
    writer = _Writer(tokenizer)
    writer.special(*START)
    if tools:
        _write_tools(writer, tools)
    last_user = _last_user(messages)
    previous: Message = {"role": None}
    for index, message in enumerate(messages):
        try:
            closes = index > train_from and previous["role"] == "assistant" and previous.get("train", True)
            keep_reasoning = index > last_user or not thinking.clear
            turn = (sampled or {}).get(index)
            if turn is not None:
                writer.special(ASSISTANT)
                _write_sampled(writer, turn, keep_reasoning, train=index >= train_from)
            else:
                _write_message(writer, message, previous, closes, keep_reasoning, train=index >= train_from)
        except ValueError as error:
            raise ValueError(f"message {index} of the chat: {error}") from error
        previous = message
    return writer


def _check(messages: list[Message]) -> None:
    if not messages:
        raise ValueError("a chat needs at least one message")
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLE_TOKENS:
            raise ValueError(
                f"message {index} of the chat: its role is {role!r}; use {', '.join(ROLE_TOKENS)}"
            )


def _last_user(messages: list[Message]) -> int:
    return max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)


def _later_questions(messages: list[Message]) -> list[int]:
    """The user messages that stand after an assistant message."""
    roles = [message["role"] for message in messages]
    return [index for index, role in enumerate(roles) if role == "user" and "assistant" in roles[:index]]


def _write_tools(writer: _Writer, tools: list[dict]) -> None:
    writer.special(SYSTEM)
    schemas = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools)
    writer.text(TOOLS_BEFORE + schemas + TOOLS_AFTER[0])
    for part in TOOLS_AFTER[1:]:
        writer.special(*part) if isinstance(part, tuple) else writer.text(part)


def _write_message(
    writer: _Writer, message: Message, previous: Message, closes: bool, keep_reasoning: bool, train: bool
) -> None:
    role = message["role"]
    token = ROLE_TOKENS[role]
    if role != "tool" or previous["role"] != "tool":  # results that follow one another share one role token
        writer.special(token, train=closes and token == _stop_token(previous))
    if role == "assistant":
        _write_answer(writer, message, keep_reasoning, train and message.get("train", True))
    elif role == "tool":
        writer.special(RESPONSE)
        writer.text(_content(message))
        writer.special(END_RESPONSE)
    else:
        writer.text(_content(message))


def _write_answer(writer: _Writer, message: Message, keep_reasoning: bool, train: bool) -> None:
    reasoning = message.get("reasoning_content") or ""
    if not isinstance(reasoning, str):
        raise ValueError("reasoning_content must be text")
    if reasoning and keep_reasoning:
        writer.special(THINK)
        writer.text(reasoning.strip(), train)
        writer.special(END_THINK, train=train)
    else:
        writer.special(END_THINK)
    writer.text(_content(message).strip(), train)
    for call in message.get("tool_calls") or []:
        _write_call(writer, call, train)


def _write_sampled(writer: _Writer, turn: SampledTurn, keep_reasoning: bool, train: bool) -> None:
    """A turn as it was sampled; where its reasoning goes, what stands behind it stays."""
    ids, end = list(turn.ids), writer.tokenizer.ids_by_name[END_THINK]
    if turn.thinking and keep_reasoning:
        writer.special(THINK)
    else:
        writer.special(END_THINK)
        if turn.thinking:
            ids = ids[ids.index(end) + 1 :] if end in ids else []
    writer.ids += ids
    writer.train += [train] * len(ids)


def _write_call(writer: _Writer, call: dict, train: bool) -> None:
    name, arguments = _call_parts(call)
    writer.special(CALL, train=train)
    writer.text(name, train)
    for key, value in arguments.items():
        writer.special(KEY, train=train)
        writer.text(key, train)
        writer.special(END_KEY, VALUE, train=train)
        writer.text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), train)
        writer.special(END_VALUE, train=train)
    writer.special(END_CALL, train=train)


def _call_parts(call: dict) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a tool call; arguments may be an object or, as in OpenAI's API, its JSON text."""
    function = call.get("function") or call
    name, arguments = function.get("name"), function.get("arguments") or {}
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call has no function name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            raise ValueError(f"the arguments of the call of {name} are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(
            f"the arguments of the call of {name} must be an object, not {type(arguments).__name__}"
        )
    return name, arguments


def _content(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError("content must be text or a list of text parts; other media are not supported")
    return content


def _stop_token(answer: Message) -> str:
    """The role token that ends an assistant message: tools answer its calls, otherwise the user speaks."""
    return OBSERVATION if answer.get("tool_calls") else USER
