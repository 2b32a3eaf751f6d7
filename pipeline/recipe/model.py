"""Section ``model``: a preset of ``model.config`` with changed fields."""

from typing import Literal, Self

from pydantic import ConfigDict, model_validator

from model.config import END_OF_TEXT, PRESETS, SPECIAL_TOKENS, TOKENIZER_CONFIG, ModelConfig
from pipeline.recipe.base import Section

# The data stages take what they need of the tokenizer from here: they may not import the model.
__all__ = ["END_OF_TEXT", "SPECIAL_TOKENS", "TOKENIZER_CONFIG", "ModelSection"]


class ModelSection(Section):
    """``preset`` names a shape; any field of ``ModelConfig`` beside it replaces the preset's value."""

    model_config = ConfigDict(extra="allow", frozen=True)
    preset: Literal["tiny", "small", "node", "glm5"]

    @model_validator(mode="after")
    def _known_fields(self) -> Self:
        self.config()
        return self

    def config(self) -> ModelConfig:
        return ModelConfig(**{**PRESETS[self.preset], **(self.model_extra or {})})
