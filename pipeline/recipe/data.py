"""Sections of the data stages, from ``collect`` to ``sft_data``."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveInt, model_validator

from pipeline.recipe.base import Address, Section
from pipeline.recipe.minhash import has_two_bands

Mode = Literal["interleaved", "preserved", "off"]  # of thinking (GLM-5 paper section 3.1)


def _quoted(table: Any) -> Any:
    """YAML 1.1 reads an unquoted ``off`` as false."""
    if isinstance(table, dict) and any(isinstance(name, bool) for name in table):
        raise ValueError('a name without quotes was read as true or false: quote it, for instance "off"')
    return table


class Source(Section):
    """Where documents come from. ``data_pipelines/sources/<kind>.py`` reads it."""

    kind: Literal["python_packages", "wheel", "folder"]
    name: str  # as documents and scores name it
    packages: list[str] | None = None  # python_packages: distributions, "stdlib"; None: all but stdlib
    requirement: str | None = None  # wheel: ``name==version``
    sha256: str | None = None  # wheel: of the file
    reader: Literal["factbook"] | None = None  # wheel: turns its files into documents; None: text as it is
    path: str | None = None  # folder, or one file
    licence: str | None = None  # of what lies in a folder, or in place of what a wheel says
    max_mb: float | None = Field(None, gt=0)  # of text, taken in a seeded order

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "wheel" and "==" not in (self.requirement or ""):
            raise ValueError(f"source {self.name} of kind wheel needs requirement: name==version")
        if self.kind == "folder" and not self.path:
            raise ValueError(f"source {self.name} of kind folder needs path:")
        if self.packages == []:
            raise ValueError(f"source {self.name} names no package: leave packages: out to take all")
        return self


class CollectSection(Section):
    sources: list[Source] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"two sources have one name (names: {', '.join(names)})")
        return self


class DataWheel(Section):
    requirement: str = Field(pattern=r"^[^=]+==[^=]+$")  # ``name==version``
    sha256: str  # of the file


class EvalSetsSection(Section):
    heldout_fraction: float = Field(0.02, gt=0, lt=0.5)  # of each source's characters, by hash
    environments: list[str] = Field(min_length=1)  # whose families are examined, all of each
    items_per_family: int = Field(50, gt=0)  # held-out environment tasks a family and mode
    long_context_lengths: list[PositiveInt] = Field(min_length=1)  # tokens, approximately
    long_context_items: int = Field(40, gt=0)  # a task and length
    ruler_lengths: list[PositiveInt] | None = Field(None, min_length=1)  # None: the last one above
    ruler_items: int = Field(20, gt=0)  # a task and length
    humaneval: DataWheel | None = None  # None: no such problems


class CurateSection(Section):
    """Thresholds that a user may want to move; the rules' own constants stand beside them in ``filters/``."""

    min_characters: int = Field(200, ge=0)
    max_line_characters: int = Field(2000, gt=0)
    minhash_permutations: int = Field(64, ge=2, le=4096)  # the index takes seconds to lay out 4096
    minhash_threshold: float = Field(0.8, gt=0, lt=1)

    @model_validator(mode="after")
    def _sketches_can_be_indexed(self) -> Self:
        if not has_two_bands(self.minhash_threshold, self.minhash_permutations):
            raise ValueError(
                f"minhash_threshold {self.minhash_threshold:g} is too near 1 for sketches of "
                f"{self.minhash_permutations} minhash_permutations: lower it, or raise those"
            )
        return self


class TokenizerSection(Section):
    vocab_size: int = Field(gt=256)
    train_mb: float = Field(gt=0)  # of text that the merges are learned from


class PretrainDataSection(Section):
    # Share of the tokens by source name.
    mix: Annotated[dict[str, NonNegativeFloat], BeforeValidator(_quoted)] = Field(min_length=1)
    tokens: int = Field(gt=0)
    fill_in_the_middle: float = Field(0.5, ge=0, le=1)  # share of code documents


class MidtrainDataSection(Section):
    contexts: dict[PositiveInt, PositiveInt] = Field(min_length=1)  # sequence length -> tokens
    repository: float = Field(ge=0, le=1)  # shares of the tokens
    long_documents: float = Field(ge=0, le=1)
    synthetic: float = Field(ge=0, le=1)


class SftDataSection(Section):
    chats: int = Field(gt=0)
    modes: Annotated[dict[Mode, NonNegativeFloat], BeforeValidator(_quoted)] = Field(min_length=1)
    families: dict[str, NonNegativeFloat] = Field(min_length=1)  # weight by "environment/family"
    wrong_turns: float = Field(0.1, ge=0, le=1)  # share of the chats that can hold a wrong turn, masked
    off_turns: float = Field(0.1, ge=0, le=1)  # share of the dialogues with a later turn without thinking


class Drafter(Section):
    """A model behind the OpenAI interface that drafts terminal tasks (its key: OPENAI_API_KEY)."""

    base_url: Address
    model: str
    licence: str  # of what the model writes
    seconds: float = Field(300.0, gt=0)  # until an answer is there
    temperature: float = Field(1.0, ge=0)
    max_tokens: int = Field(8192, gt=0)
    rounds: int = Field(2, ge=0)  # repairs of a rejected draft, at most


class SweSection(Section):
    """Fix tasks from real projects, those of ``data_pipelines/task_building/swe/projects.py``."""

    tasks: int = Field(0, ge=0)  # to keep, at most
    projects: list[str] = []
    # debian: patches of source packages, where apt can fetch them
    kinds: list[Literal["release", "reversal", "debian"]] = ["release", "reversal"]
    releases: int | None = Field(None, ge=2)  # of each project, the newest; None: all that are declared
    reversals: int | None = Field(None, ge=0)  # a pair of releases, at most; None: all that are sound


class AgentTasksSection(Section):
    terminal: int = Field(ge=0)  # tasks to keep
    families: dict[str, NonNegativeFloat] = {}  # weight by family of terminal tasks
    swe: SweSection = SweSection()
    drafter: Literal["scripted"] | Drafter = "scripted"
    repeats: int = Field(3, ge=1)  # runs of the nop agent and of the oracle, which must not differ
    candidate_seconds: float = Field(600.0, gt=0)  # for all runs of a candidate
    at_once: PositiveInt | None = None  # candidates; None: as many as there are cores
    backend: Literal["bubblewrap", "docker"] | None = None  # None: the best that works here
