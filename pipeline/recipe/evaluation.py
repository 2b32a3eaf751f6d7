"""Sections of ``evaluate`` and ``report``."""

from pydantic import Field

from pipeline.recipe.base import Section


class EvaluateSection(Section):
    version: int = 1
    checkpoints: list[str] = Field(min_length=1)  # stages whose checkpoint is scored
    documents_per_source: int = Field(32, gt=0)
    max_new_tokens: int = Field(96, gt=0)
    batch: int = Field(128, gt=0)
    samples_kept: int = Field(4, ge=0)  # a suite, shown in the report


class ReportSection(Section):
    title: str = "GLM-5 pipeline"
