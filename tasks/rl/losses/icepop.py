"""GRPO with IcePop, the loss of reasoning RL (paper section 3.2, equation 1), without a KL term.

L = - sum_t w_t pop(rho_t) min(r_t A_t, clip(r_t, 1 - eps_low, 1 + eps_high) A_t)
rho_t = pi_train_old / pi_infer_old,   r_t = pi_train / pi_train_old
pop(rho) = rho where 1/beta <= rho <= beta, else 0
"""

from dataclasses import dataclass

import torch

from tasks.rl.losses.tokens import SampledTokens, Values, mismatch_kl, share, weighted


@dataclass(frozen=True)
class IcePop:
    """``beta`` bounds how far trainer and engine may disagree on a token. Defaults are the paper's."""

    beta: float = 2.0
    eps_low: float = 0.2
    eps_high: float = 0.28

    def __call__(self, current_BT: torch.Tensor, tokens: SampledTokens) -> tuple[torch.Tensor, Values]:
        """The loss, a scalar, of log-probabilities ``current_BT`` (with gradient), and what is logged."""
        rho_BT = (tokens.before_BT - tokens.rollout_BT).exp()
        inside_BT = (rho_BT >= 1 / self.beta) & (rho_BT <= self.beta)
        ratio_BT = (current_BT - tokens.before_BT).exp()
        clipped_BT = ratio_BT.clamp(1 - self.eps_low, 1 + self.eps_high)
        advantage_BT = tokens.advantage_BT
        gain_BT = torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
        values = {
            "off_policy/masked": share(~inside_BT, tokens),
            "off_policy/clipped": share(ratio_BT != clipped_BT, tokens),
            "mismatch_kl": mismatch_kl(tokens),
        }
        return -weighted(rho_BT.where(inside_BT, 0.0) * gain_BT, tokens), values
