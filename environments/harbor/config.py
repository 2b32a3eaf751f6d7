"""task.toml of a Harbor task (schema 1.0 to 1.4) as strict models: what is unknown or no number is refused.

Harbor itself ignores keys that it does not know, so a misspelt limit would silently not hold. Deprecated keys
(``memory``, ``storage``, ``allow_internet``, ``version``) are read and turned into the present ones.
"""

import difflib
import math
import re
import tomllib
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.errors import UserError

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])", re.IGNORECASE)
MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024}

Seconds = Annotated[float, Field(gt=0)]
NetworkMode = Literal["no-network", "public", "allowlist"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Author(_Table):
    name: str
    email: str | None = None


class Package(_Table):
    name: str  # organisation/name
    version: str | None = Field(None, min_length=1)
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []

    @field_validator("name")
    @classmethod
    def _of_form(cls, name: str) -> str:
        if not NAME.fullmatch(name) or ".." in name:
            raise ValueError(f"{name!r} is not of the form organisation/name")
        return name


class _Network(_Table):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_only_in_a_list(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class Agent(_Network):
    timeout_sec: Seconds | None = None
    user: str | int | None = None


class Healthcheck(_Table):
    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(0.0, ge=0)
    start_interval_sec: Seconds = 5.0
    retries: int = Field(3, ge=0)


class Tpu(_Table):
    type: str = Field(min_length=1)
    topology: str


class McpServer(_Table):
    name: str
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}


class Machine(_Network):
    """``[environment]``: how the image is built and what a container may use."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    gpus: int | None = Field(None, ge=0)
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServer] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _deprecated(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        table = dict(table)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in table:
                size = _megabytes(old, table.pop(old))
                if table.setdefault(new, size) != size:
                    raise ValueError(f"{old} and {new} disagree: leave {old} out")
        if isinstance(table.get("os"), str):
            table["os"] = table["os"].lower()
        allowed = table.pop("allow_internet", None)
        if allowed is not None and "network_mode" not in table:
            table["network_mode"] = "public" if allowed is True else "no-network"
        return table


class Collect(_Table):
    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: str | int | None = None


class Verifier(_Network):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Machine | None = None
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _own_machine_is_separate(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' contradicts the table verifier.environment")
        return self

    @property
    def separate(self) -> bool:
        """Whether the tests run in a clean sandbox of their own."""
        return (self.environment_mode or ("separate" if self.environment else "shared")) == "separate"


class Solution(_Table):
    env: dict[str, str] = {}


class Artifact(_Table):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @field_validator("source", "destination")
    @classmethod
    def _stays_inside(cls, path: str | None) -> str | None:
        if path is not None and ".." in path.split("/"):
            raise ValueError(f"{path!r} leads upwards")
        return path


class Step(_Table):
    name: str = Field(min_length=1)
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = []


class TaskConfig(_Table):
    schema_version: Literal["1.0", "1.1", "1.2", "1.3", "1.4"] = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = {}
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Machine = Machine()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] | None = None
    artifacts: list[str | Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _older_name_of_version(cls, table: Any) -> Any:
        if isinstance(table, dict) and "version" in table:
            table = dict(table)
            table.setdefault("schema_version", table.pop("version"))
        return table

    def artifact_paths(self) -> list[Artifact]:
        """Declared artifacts, all in the long form."""
        return [item if isinstance(item, Artifact) else Artifact(source=item) for item in self.artifacts]


def read_config(text: str, where: str) -> TaskConfig:
    """The text of a task.toml. Raises ``UserError``: one sentence that names ``where`` and every fault."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not valid TOML: {' '.join(str(error).split())}") from None
    for place, value in _numbers(table, ""):
        if not math.isfinite(value):
            raise UserError(f"{where}: {place} is {value}, give a finite number")
    try:
        return TaskConfig.model_validate(table)
    except ValidationError as error:
        raise UserError(f"{where}: {'; '.join(dict.fromkeys(map(_explain, error.errors())))}") from None


def _megabytes(key: str, size: Any) -> int:
    match = SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if not match:
        raise ValueError(f"{key} must be a size such as '1G' or '512M'")
    return max(1, int(float(match[1]) * MEGABYTES[match[2].upper()]))


def _numbers(value: Any, place: str):
    """All floating point numbers below ``value`` with their places."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _numbers(item, f"{place}.{key}" if place else str(key))
    if isinstance(value, float):
        yield place, value


def _explain(fault: Any) -> str:
    # A union's branches stand in the place, such as artifacts.0.Artifact: only keys and numbers are kept.
    path = [part for part in fault["loc"] if isinstance(part, int) or re.fullmatch(r"[a-z_0-9-]+", part)]
    where = ".".join(map(str, path))
    if fault["type"] != "extra_forbidden":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{where}: {message}" if where else message
    known = _keys_at(TaskConfig, fault["loc"][:-1])
    nearest = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
    hint = f", did you mean {nearest[0]!r}?" if nearest else f" (known: {', '.join(known)})"
    return f"unknown key {where!r}{hint}"


def _keys_at(kind: type[BaseModel], location: tuple) -> list[str]:
    for part in location:
        field = kind.model_fields.get(part)
        if field is not None:
            kind = _model_in(field.annotation) or kind
    return list(kind.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
