"""Section ``model``: a preset of ``model.config`` with changed fields."""

import math
from typing import Literal, Self

from pydantic import ConfigDict, model_validator

from model.config import END_OF_TEXT, PRESETS, SPECIAL_TOKENS, TOKENIZER_CONFIG, ModelConfig
from pipeline.recipe.base import Section

# The data stages take what they need of the tokenizer from here: they may not import the model.
__all__ = ["END_OF_TEXT", "SPECIAL_TOKENS", "TOKENIZER_CONFIG", "ModelSection"]

# A model can be without these; every other size is at least 1.
_MAY_BE_ZERO = {"first_dense_layers", "num_shared_experts", "mtp_steps", "init_std"}


class ModelSection(Section):
    """``preset`` names a shape; any field of ``ModelConfig`` beside it replaces the preset's value."""

    model_config = ConfigDict(extra="allow", frozen=True)
    preset: Literal["tiny", "small", "node", "glm5"]

    @model_validator(mode="after")
    def _known_fields(self) -> Self:
        for name, value in self.config():
            if not 0 <= value < math.inf or (value == 0 and name not in _MAY_BE_ZERO):
                least = "0 or more" if name in _MAY_BE_ZERO else "above 0"
                raise ValueError(f"{name} is {value}: it must be a finite number {least}")
        return self

    def config(self) -> ModelConfig:
        return ModelConfig(**{**PRESETS[self.preset], **(self.model_extra or {})})
