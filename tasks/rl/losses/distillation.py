"""The advantage of on-policy cross-stage distillation (paper section 3.5, equation 2).

    A_t = log pi_teacher(y_t) - log pi_student(y_t),   without gradient

It takes the place of the reward's in equation 1 (``icepop.py``): a sampled token that the teacher finds more
likely than the student is made more likely. Its mean over the student's samples is -KL(student || teacher).
"""

import torch


def teacher_advantage(teacher_BT: torch.Tensor, student_BT: torch.Tensor) -> torch.Tensor:
    """float32 (B, T) from log-probabilities of the sampled tokens: the teacher's, by its engine, and the
    trainer's as the step began. Never carries a gradient.
    """
    return (teacher_BT - student_BT).detach()
