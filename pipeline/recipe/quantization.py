"""Section of ``quantize`` (paper section 5)."""

from typing import Literal

from pydantic import Field

from pipeline.recipe.base import Section


class Calibration(Section):
    """Rows of training data that the quantiser looks at: chats, and windows of ``pretrain_data``."""

    chats: int = Field(96, ge=0)
    documents: int = Field(32, ge=0)
    length: int = Field(256, gt=1)  # tokens of a row; longer chats are cut


class HeldOut(Section):
    """Rows that are compared before and after: chats that fine-tuning kept for validation, and documents of
    ``eval_sets``. None of them is calibrated on.
    """

    chats: int = Field(48, gt=0)
    documents: int = Field(48, gt=0)
    length: int = Field(256, gt=1)
    prompts: int = Field(32, gt=0)  # continued greedily, for the length of accepted drafts
    new_tokens: int = Field(32, gt=0)


Method = Literal["minmax", "ssz", "smoothquant", "awq", "flex_awq_ssz", "gptq"]


class QuantizeSection(Section):
    """GLM-5's mix by default: 4-bit experts, 8-bit attention and dense layers, 8-bit tokens."""

    version: int = 1  # raised when the meaning of the stage's code changes
    method: Method = "flex_awq_ssz"
    rotation: bool = True  # QuaRot
    expert_bits: Literal[4, 8] = 4  # everything else that is quantised has 8
    min_tokens: int = Field(64, ge=0)  # an expert that fewer tokens chose is calibrated on all of its layer's
    calibration: Calibration = Calibration()
    heldout: HeldOut = HeldOut()
    # Beside the model itself, each by a method of its own: "w8a8", everything in 8 bits, for a stock vLLM.
    exports: dict[Literal["w8a8"], Method] = {"w8a8": "flex_awq_ssz"}
