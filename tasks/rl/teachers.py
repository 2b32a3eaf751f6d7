"""The teachers of cross-stage distillation: what earlier checkpoints think of a student's tokens (paper 3.5).

Each is an inference engine as the rollouts' are, with a teacher's weights, in the trainer's own process. On
policy a step's rollouts are all there before they are judged, and nothing samples meanwhile: an engine in a
process of its own would wait for the trainer as the trainer waits for it, and cost a start, memory and one
more thing that can die.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch

from model.inference.engine import Engine
from model.inference.request import SamplingParams
from pipeline.errors import UserError
from pipeline.recipe.rl import DistillSection
from tasks.rl.batches import Sample
from tasks.rl.group import Group
from tasks.rl.selection import Select, Selection, select
from tasks.side_by_side import side_by_side
from tasks.training.setup import load_model

READ = SamplingParams(max_new_tokens=0, prompt_logprobs=True)


class Teachers:
    """Engines by the teacher's name, and the teacher of each family ("environment/family")."""

    def __init__(self, engines: Mapping[str, Engine], teacher_of: Mapping[str, str], device: torch.device):
        self._engines, self._teacher_of, self._device = engines, teacher_of, device

    @classmethod
    def load(
        cls, folders: Mapping[str, Path], teacher_of: Mapping[str, str], student: Path, device: torch.device
    ) -> Self:
        """From checkpoint folders. Raises ``UserError`` for one that has other tokens than the student."""
        tokens = (student / "tokenizer.json").read_bytes()
        for name, folder in folders.items():
            if (folder / "tokenizer.json").read_bytes() != tokens:
                raise UserError(
                    f"the teacher {name} ({folder}) has another tokenizer than the student ({student}): "
                    "their log-probabilities are of different tokens; make both from one pre-training"
                )
        engines = {name: Engine(load_model(folder, device).eval()) for name, folder in folders.items()}
        return cls(engines, teacher_of, device)

    def judged(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
        """The samples with their teacher's log-probabilities in the place of advantages, and of each teacher
        KL(student || teacher) in nats a token, by its samples and the engine's log-probabilities.
        """
        of_teacher = {
            name: [n for n, sample in enumerate(samples) if self._teacher_of[sample.family] == name]
            for name in self._engines
        }
        jobs = [(name, [samples[n].segment.ids for n in own]) for name, own in of_teacher.items() if own]
        judged, values = list(samples), {}
        found = side_by_side(lambda job: self._logprobs(*job), jobs, self._device)
        for (name, _), logprobs in zip(jobs, found, strict=True):
            gaps = []
            for n, own in zip(of_teacher[name], logprobs, strict=True):
                judged[n] = replace(samples[n], advantage=own)
                gaps += _gaps(judged[n])
            values[f"distill/kl/{name}"] = sum(gaps) / len(gaps)
        return judged, values

    def _logprobs(self, name: str, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of every token of each row; 0 for the first, which nothing predicts."""
        found = []
        for completion in self._engines[name].generate(rows, READ):
            if completion.finish == "error":
                raise UserError(f"the teacher {name} cannot judge a rollout: {completion.error}")
            found.append([0.0, *(token.logprob for token in completion.prompt)])
        return found


def by_teacher(section: DistillSection, teachers: Teachers) -> Select:
    """Train on every rollout within the section's limits, whatever its reward, as its teacher says."""

    def chosen(groups: Sequence[Group], version: int) -> Selection:
        selection = select(
            groups, version, None, max_staleness=section.rollouts.max_staleness,
            length=section.sequence_length,
        )  # fmt: skip
        samples, values = teachers.judged(selection.samples)
        return replace(selection, samples=samples, values=values, from_teachers=True)

    return chosen


def _gaps(sample: Sample) -> list[float]:
    """Of each sampled token how much more likely the student finds it than the teacher, in nats."""
    segment = sample.segment
    return [
        own - theirs
        for own, theirs, sampled in zip(segment.logprobs, sample.advantage, segment.sampled, strict=True)
        if sampled
    ]
