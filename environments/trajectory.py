"""A finished episode as a trajectory in the Agent Trajectory Interchange Format, ATIF 1.8 (of Harbor).

    trajectory = Trajectory.of_dialogue(task, messages, verdict, agent="scripted", model=None)
    path.write_text(trajectory.to_json())

The models refuse what the format refuses: gaps in the numbers of steps, fields of agents on other steps,
results that answer no call of their step. Harbor's own models read what is written here; a test checks it.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from environments.interface import Message, Task, Verdict

VERSION = "ATIF-v1.8"
AGENT_ONLY = ("model_name", "reasoning_content", "tool_calls", "metrics")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Agent(_Part):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class ToolCall(_Part):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class ObservationResult(_Part):
    source_call_id: str | None = None
    content: str | None = None


class Observation(_Part):
    results: list[ObservationResult]


class Metrics(_Part):
    """Of one model call. Token ids and log-probabilities are what a trainer needs; text only follows them."""

    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(_Part):
    total_steps: NonNegativeInt | None = None
    total_prompt_tokens: NonNegativeInt | None = None
    total_completion_tokens: NonNegativeInt | None = None
    extra: dict[str, Any] | None = None


class Step(_Part):
    step_id: PositiveInt
    source: Literal["system", "user", "agent"]
    message: str
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None  # not to be trained on again
    llm_call_count: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _only_agents_act(self) -> Self:
        for name in AGENT_ONLY:
            if self.source != "agent" and getattr(self, name) is not None:
                raise ValueError(
                    f"step {self.step_id} of source {self.source} has {name}, which agents alone have"
                )
        if self.llm_call_count == 0 and (self.metrics or self.reasoning_content):
            raise ValueError(f"step {self.step_id} called no model but has metrics or reasoning_content")
        called = {call.tool_call_id for call in self.tool_calls or []}
        for result in self.observation.results if self.observation else []:
            if result.source_call_id is not None and result.source_call_id not in called:
                raise ValueError(
                    f"step {self.step_id} has the result of {result.source_call_id!r}, which it never called"
                )
        return self


class Trajectory(_Part):
    schema_version: Literal["ATIF-v1.8"] = VERSION
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: Annotated[list[Step], Field(min_length=1)]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _numbered_without_gaps(self) -> Self:
        numbers = [step.step_id for step in self.steps]
        if numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"steps are not numbered 1 to {len(numbers)} but {numbers}")
        return self

    @classmethod
    def of_dialogue(
        cls,
        task: Task,
        messages: Sequence[Message],
        verdict: Verdict,
        agent: str,
        model: str | None = None,
        session: str | None = None,
        metrics: Sequence[Metrics] | None = None,
    ) -> Self:
        """The trajectory of OpenAI-style ``messages``, with the verdict under ``extra``.

        A tool's message becomes an observation of the step that called it. ``metrics`` has one entry an
        assistant message, where a model sampled them; without it the agent is a script and called no model.
        What is no valid Unicode, as a model or a terminal may write it, becomes ``?``.
        """
        messages = json.loads(json.dumps(messages, ensure_ascii=False).encode(errors="replace"))
        steps: list[dict[str, Any]] = []
        sampled = iter(metrics or ())
        for message in messages:
            if message["role"] == "tool":
                _observe(steps, message)
                continue
            step = {
                "step_id": len(steps) + 1,
                "source": _source(message),
                "message": message.get("content") or "",
            }
            if step["source"] == "agent":
                step |= _action(message, len(steps), next(sampled, None), scripted=metrics is None)
            steps.append(step)
        return cls(
            session_id=session,
            trajectory_id=f"{session}/{task.id}" if session else task.id,
            agent=Agent(
                name=agent, version="1", model_name=model, tool_definitions=list(task.tools) or None
            ),
            steps=[Step(**step) for step in steps],
            final_metrics=FinalMetrics(total_steps=len(steps)),
            extra={
                "task": task.id, "environment": task.environment, "family": task.family,
                "heldout": task.heldout, "reward": verdict.reward, "reason": verdict.reason,
            },
        )  # fmt: skip

    def to_json(self) -> str:
        return json.dumps(self.model_dump(exclude_none=True, mode="json"), ensure_ascii=False, indent=1)


def _source(message: Message) -> str:
    return {"system": "system", "user": "user", "assistant": "agent"}[message["role"]]


def _action(message: Message, step: int, metrics: Metrics | None, scripted: bool) -> dict[str, Any]:
    """What an assistant message did. A script called no model, but 0 calls would forbid its thinking: it has
    no number of calls instead.
    """
    calls = [
        {
            "tool_call_id": call.get("id") or f"call-{step + 1}-{number}",
            "function_name": _function(call)["name"],
            "arguments": _arguments(_function(call).get("arguments")),
        }
        for number, call in enumerate(message.get("tool_calls") or [])
    ]
    action = {
        "reasoning_content": message.get("reasoning_content"),
        "tool_calls": calls or None,
        "metrics": metrics,
    }
    return action if scripted else {**action, "llm_call_count": 1}


def _function(call: dict) -> dict:
    return call.get("function") or call


def _arguments(arguments: Any) -> dict[str, Any]:
    """Arguments as an object; what a model wrote instead of one is kept under ``text``."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            pass
    return arguments if isinstance(arguments, dict) else {"text": str(arguments)}


def _observe(steps: list[dict[str, Any]], message: Message) -> None:
    """Give a tool's message to the step that called it: by its id, or in order where it names none."""
    step = steps[-1]
    results = step.setdefault("observation", {"results": []})["results"]
    calls = [call["tool_call_id"] for call in step.get("tool_calls") or []]
    named = message.get("tool_call_id")
    open_calls = [call for call in calls if call not in {result["source_call_id"] for result in results}]
    source = named if named in calls else open_calls[0] if open_calls else None
    results.append({"source_call_id": source, "content": message.get("content")})
