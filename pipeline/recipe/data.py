"""Sections of the data stages, from ``collect`` to ``sft_data``."""

from typing import Literal

from pydantic import Field, NonNegativeFloat

from pipeline.recipe.base import Section


class Source(Section):
    """Where documents come from. ``data_pipelines/sources/<kind>.py`` reads it."""

    kind: Literal["python_packages", "wheel", "folder"]
    name: str  # as documents and scores name it
    packages: list[str] | None = None  # python_packages: "stdlib" and distribution names; None for all
    requirement: str | None = None  # wheel: ``name==version``
    sha256: str | None = None  # wheel: of the file
    reader: str | None = None  # wheel: the function that turns its files into documents
    path: str | None = None  # folder
    licence: str | None = None  # folder: licence of what lies in it
    max_mb: float | None = Field(None, gt=0)  # of text, taken in a seeded order


class CollectSection(Section):
    sources: list[Source] = Field(min_length=1)


class EvalSetsSection(Section):
    heldout_fraction: float = Field(0.02, gt=0, lt=0.5)  # of documents, by hash
    items_per_family: int = Field(50, gt=0)  # held-out environment tasks a family and mode
    long_context_lengths: list[int] = Field(min_length=1)  # tokens, approximately
    long_context_items: int = Field(40, gt=0)  # a task and length


class CurateSection(Section):
    min_characters: int = 200
    max_line_characters: int = 2000
    minhash_permutations: int = 64
    minhash_threshold: float = Field(0.8, gt=0, lt=1)


class TokenizerSection(Section):
    vocab_size: int = Field(gt=256)
    train_mb: float = Field(gt=0)  # of text that the merges are learned from


class PretrainDataSection(Section):
    mix: dict[str, float] = Field(min_length=1)  # share of the tokens by source name
    tokens: int = Field(gt=0)
    fill_in_the_middle: float = Field(0.5, ge=0, le=1)  # share of code documents


class MidtrainDataSection(Section):
    contexts: dict[int, int] = Field(min_length=1)  # sequence length -> tokens
    repository: float = Field(ge=0, le=1)  # shares of the tokens
    long_documents: float = Field(ge=0, le=1)
    synthetic: float = Field(ge=0, le=1)


class SftDataSection(Section):
    chats: int = Field(gt=0)
    modes: dict[Literal["interleaved", "preserved", "off"], NonNegativeFloat] = Field(min_length=1)
    families: dict[str, NonNegativeFloat] = Field(min_length=1)  # weight by "environment/family"
    wrong_turns: float = Field(0.1, ge=0, le=1)  # share of the chats that can hold a wrong turn, masked
    off_turns: float = Field(0.1, ge=0, le=1)  # share of the dialogues with a later turn without thinking
