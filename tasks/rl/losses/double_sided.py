"""Direct double-sided importance sampling, the loss of agentic RL (paper section 4.1.2, equations 3 to 5).

    L = - sum_t w_t f(r_t) A_t log pi(a_t),   r_t = pi / pi_rollout
    f(r) = r where 1 - eps_low < r < 1 + eps_high, else 0

The ratio is against the log-probabilities that the engine recorded: no weights of an older version are kept
or asked. A token outside the band is masked whatever the sign of its advantage. The paper does not say that f
is held constant in the gradient; a weight in front of log pi is, so it is detached.
"""

from dataclasses import dataclass

import torch

from tasks.rl.losses.tokens import SampledTokens, Values, mismatch_kl, share, weighted


@dataclass(frozen=True)
class DoubleSided:
    """The paper gives no values for the band: the defaults are those of reasoning RL's clip."""

    eps_low: float = 0.2
    eps_high: float = 0.28

    def __call__(self, current_BT: torch.Tensor, tokens: SampledTokens) -> tuple[torch.Tensor, Values]:
        """The loss, a scalar, of log-probabilities ``current_BT`` (with gradient), and what is logged."""
        ratio_BT = (current_BT.detach() - tokens.rollout_BT).exp()
        inside_BT = (ratio_BT > 1 - self.eps_low) & (ratio_BT < 1 + self.eps_high)
        trust_BT = ratio_BT.where(inside_BT, 0.0)
        values = {"off_policy/masked": share(~inside_BT, tokens), "mismatch_kl": mismatch_kl(tokens)}
        return -weighted(trust_BT * tokens.advantage_BT * current_BT, tokens), values
