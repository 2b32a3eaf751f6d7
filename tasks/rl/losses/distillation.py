"""On-policy cross-stage distillation (paper section 3.5, equation 2): equation 1 with a teacher's advantage.

    A_t = log pi_teacher(y_t) - log pi_student(y_t),   without gradient

It takes the place of the reward's in ``icepop.py``: a sampled token that the teacher finds more likely than
the student is made more likely. Its mean over the student's samples is -KL(student || teacher).
"""

from dataclasses import dataclass, replace

import torch

from tasks.rl.losses.icepop import IcePop
from tasks.rl.losses.tokens import SampledTokens, Values


@dataclass(frozen=True)
class Distillation:
    """``advantage_BT`` of the tokens it is called with holds the teacher's log-probabilities: the student's
    are those of the trainer, and known only here.
    """

    icepop: IcePop = IcePop()

    def __call__(self, current_BT: torch.Tensor, tokens: SampledTokens) -> tuple[torch.Tensor, Values]:
        """As ``IcePop``."""
        advantage_BT = teacher_advantage(tokens.advantage_BT, tokens.before_BT)
        return self.icepop(current_BT, replace(tokens, advantage_BT=advantage_BT))


def teacher_advantage(teacher_BT: torch.Tensor, student_BT: torch.Tensor) -> torch.Tensor:
    """float32 (B, T) from log-probabilities of the sampled tokens: the teacher's, by its engine, and the
    trainer's as the step began. Never carries a gradient.
    """
    return (teacher_BT - student_BT).detach()
