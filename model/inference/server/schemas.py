"""What clients send: OpenAI's bodies, and the verbs of reinforcement learning.

Unknown fields are ignored, as clients send many that mean nothing here. A field that would change the answer
and is not supported is refused. ``null`` stands for a field's default.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

MOST_STOPS = 16
# Fields of OpenAI's API that would change the answer, with the value that would not.
UNSUPPORTED = {
    "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"},
    "best_of": 1, "suffix": "", "functions": [], "function_call": "none",
}  # fmt: skip
Stops = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class Body(BaseModel):
    """JSON types must fit exactly: a number as text is refused."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class StreamOptions(Body):
    include_usage: bool = False


class SamplingBody(Body):
    """What chat and plain completions share."""

    model: str | None = None  # None: the one that is loaded
    n: int = Field(1, ge=1, le=128)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)  # 0 and -1: all
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Stops = Field([], max_length=MOST_STOPS)
    stop_token_ids: list[int] = Field([], max_length=MOST_STOPS)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False  # also those of the prompt

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, data: Any) -> Any:
        for name, harmless in UNSUPPORTED.items():
            if isinstance(data, dict) and data.get(name) not in (None, harmless):
                raise ValueError(f"{name} is not supported; leave it out")
        return data

    @field_validator("stop")
    @classmethod
    def _stops_have_text(cls, stops: list[str]) -> list[str]:
        if "" in stops:
            raise ValueError("a stop string cannot be empty")
        return stops


def _prompts(value: Any) -> list:
    """Text, texts, token ids or lists of token ids, to a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _are_ids(value):
            return [value]
        if all(isinstance(item, str) or (isinstance(item, list) and _are_ids(item)) for item in value):
            return value
    raise ValueError("give text, a list of texts, a list of token ids, or a list of such lists")


def _are_ids(value: list) -> bool:
    return all(type(item) is int for item in value)


class CompletionBody(SamplingBody):
    prompt: Annotated[list[Any], BeforeValidator(_prompts)] = Field([""])
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    return_routed_experts: bool = False  # at the end of each choice; of a server with --record-experts


class TextPart(Body):
    type: Literal["text"]
    text: str


class FunctionCall(Body):
    name: str = Field(min_length=1)
    arguments: str | dict[str, Any] = ""


class ToolCall(Body):
    function: FunctionCall


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] = ""
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = []

    def for_renderer(self) -> dict[str, Any]:
        message = self.model_dump(exclude_none=True, exclude_defaults=True) | {"role": self.role}
        if self.role == "developer":  # OpenAI's newer name
            message["role"] = "system"
        return message


class _FunctionParameters(Body):
    properties: dict[str, dict[str, Any]] = {}

    @field_validator("properties")
    @classmethod
    def _types(cls, properties: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, schema in properties.items():
            kinds = schema.get("type", [])
            if not isinstance(kinds, str) and not (
                isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
            ):
                raise ValueError(f"the type of {name!r} must be a name or a list of names")
        return properties


class _Function(Body):
    name: str = Field(min_length=1)
    parameters: _FunctionParameters | None = None


class _Tool(Body):
    type: Literal["function"]
    function: _Function


def _checked_tool(tool: Any) -> Any:
    _Tool.model_validate(tool)
    return tool  # rendered as it came, key for key


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class TemplateOptions(BaseModel):
    """The chat template's switches; see model/chat/tokens.py."""

    model_config = ConfigDict(strict=True, extra="forbid")
    enable_thinking: bool = True
    clear_thinking: bool = True


class DialogueBody(Body):
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[Annotated[dict[str, Any], BeforeValidator(_checked_tool)]] = []
    chat_template_kwargs: TemplateOptions = TemplateOptions()


class ChatBody(SamplingBody, DialogueBody):
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)  # the newer name
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> "ChatBody":
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            if name not in [tool["function"]["name"] for tool in self.tools]:
                raise ValueError(f"tool_choice names {name!r}, which is not among the tools")
        elif self.tool_choice == "required" and not self.tools:
            raise ValueError("tool_choice 'required' needs tools")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Annotated[dict[str, Any], BeforeValidator(_checked_tool)]] = []
    chat_template_kwargs: TemplateOptions = TemplateOptions()
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


class LoadWeightsBody(Body):
    folder: str = Field(min_length=1)
    version: int = Field(ge=0)
    checksum: str | None = None  # of the state dict, or of a manifest of buckets
    seconds: float | None = Field(None, gt=0)  # that the sender waits
