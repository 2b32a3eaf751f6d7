"""Sections of the training stages: pretrain, midtrain, dsa_warmup, dsa_adapt, sft.

Words, everywhere the same: a micro-batch is the sequences of one forward pass on one device, the global batch
is the tokens of one optimizer step over all devices.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from pipeline.recipe.base import Section

Fading = Annotated[float, Field(ge=0, lt=1)]  # share that a running mean keeps at each step


class Optimizer(Section):
    """Muon (with Muon Split) for matrices, AdamW for embedding, head, router and vectors (GLM-4.5 2.4)."""

    muon_lr: float = Field(gt=0)
    adamw_lr: float = Field(gt=0)
    muon_split: bool = True
    momentum: Fading = 0.95
    betas: tuple[Fading, Fading] = (0.9, 0.95)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0)  # gradient norm


class Schedule(Section):
    """Learning-rate factor over the steps: linear warm-up, then decay to ``final`` of the peak."""

    shape: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    final: float = Field(0.1, ge=0, le=1)


class TrainSection(Section):
    """What all training stages share."""

    version: int = 1  # raised when the meaning of the stage's code changes; holds in its identity
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    micro_batch: int = Field(gt=0)  # sequences
    recompute: bool = False  # activation checkpointing: less memory, a third more arithmetic
    global_batch_tokens: int = Field(gt=0)
    save_every_steps: int = Field(100, gt=0)
    keep_last: int = Field(2, gt=0)
    validate_every_steps: int = Field(100, gt=0)
    validation_rows: int = Field(32, gt=0)  # sequences that are kept out of training

    @property
    def phases(self) -> Sequence[Section]:
        """What has a sequence length of its own: the stage, or each step of its context extension."""
        return [self]

    def micro_batches(self, length: int) -> int:
        """Of an optimizer step on sequences of ``length`` tokens."""
        return self.global_batch_tokens // (self.micro_batch * length)


class Mtp(Section):
    """Multi-token prediction (paper section 2.1): three steps that share one block."""

    weight: float = Field(0.3, ge=0)
    # 1 is the paper's. On a CPU the three steps cost nearly as much as the trunk of a tiny model.
    every_steps: int = Field(1, gt=0)  # optimizer steps from one with the MTP loss to the next


class IndexerLoss(Section):
    """KL of the lightning indexer inside its own selection (DeepSeek-V3.2 eq. 4)."""

    weight: float = Field(1.0, gt=0)
    every_steps: int = Field(1, gt=0)  # optimizer steps from one with it to the next


class Balance(Section):
    """Auxiliary-loss-free balancing: each step the selection bias moves by ``bias_step`` against the load."""

    bias_step: float = Field(0.001, ge=0)
    sequence_loss: float = Field(1e-4, ge=0)


class PretrainSection(TrainSection):
    sequence_length: int = Field(gt=0)
    tokens: int = Field(gt=0)
    mtp: Mtp = Mtp()
    balance: Balance = Balance()


class ContextStep(Section):
    """One step of the context extension (paper section 2.3)."""

    sequence_length: int = Field(gt=0)
    tokens: int = Field(gt=0)


class MidtrainSection(TrainSection):
    rope_base: float = Field(gt=0)
    contexts: list[ContextStep] = Field(min_length=1)
    mtp: Mtp = Mtp()
    balance: Balance = Balance()

    @property
    def phases(self) -> Sequence[Section]:
        return self.contexts


class DsaWarmupSection(TrainSection):
    """Only the indexers train: ``muon_lr`` for their projections, ``adamw_lr`` for their head weights."""

    sequence_length: int = Field(gt=0)
    tokens: int = Field(gt=0)
    mtp_every_steps: int = Field(8, gt=0)  # as ``Mtp.every_steps``, for the MTP block's indexer


class DsaAdaptSection(TrainSection):
    sequence_length: int = Field(gt=0)
    tokens: int = Field(gt=0)
    indexer_loss: IndexerLoss = IndexerLoss()
    mtp: Mtp = Mtp()
    balance: Balance = Balance()


class SftSection(TrainSection):
    version: int = 2  # 2: chats stand in other rows since mid-training's packing packs them
    sequence_length: int = Field(gt=0)
    epochs: float = Field(gt=0)
    indexer_loss: IndexerLoss = IndexerLoss()
    balance: Balance = Balance()
    # Quantisation-aware training of the routed experts (paper section 2.4.3): what min-max quantisation makes
    # of them later is what was trained, bit for bit, as long as nothing rotates or smooths them in between.
    qat: Literal["int4"] | None = None
