"""Sections of ``evaluate`` and ``report``."""

from pydantic import Field

from pipeline.recipe.base import Section


class EvaluateSection(Section):
    """How much of the evaluation sets is used. Every number of items is part of the protocol's hash."""

    version: int = 1
    checkpoints: list[str] = Field(min_length=1)  # stages that are scored, in the order of training
    documents_per_source: int = Field(24, gt=0)
    length: int = Field(256, gt=0)  # tokens of a document under bits per byte
    long_length: int = Field(512, gt=0)  # tokens of a document under sparse attention and its controls
    long_documents: int = Field(24, gt=1)
    long_context_items: int = Field(6, gt=0)  # a task and length
    long_context_new_tokens: int = Field(16, gt=0)
    ruler_items: int = Field(1, gt=0)  # a task and length
    ruler_new_tokens: int = Field(64, gt=0)  # RULER's own limits go up to 128
    humaneval_problems: int = Field(8, gt=0)  # where eval_sets has them; 164 for all
    humaneval_samples: int = Field(4, gt=0)
    humaneval_new_tokens: int = Field(64, gt=0)
    items_per_family: int = Field(40, gt=0)  # environment tasks a family and mode, for checkpoints that chat
    max_new_tokens: int = Field(96, gt=0)  # an assistant turn
    # The same two for checkpoints before fine-tuning, which score about 0 and never end a turn.
    base_items_per_family: int = Field(1, gt=0)
    base_max_new_tokens: int = Field(24, gt=0)
    # Samples at temperature 1, for checkpoints that chat: tasks of a family, with interleaved thinking.
    sampled_items_per_family: int = Field(4, ge=0)  # 0: none
    samples_per_task: int = Field(4, gt=0)
    samples_kept: int = Field(4, ge=0)  # a suite (and mode), shown in the report


class ReportSection(Section):
    title: str = "GLM-5 pipeline"
