"""Which optimizer takes which parameter, and both behind one face.

Muon takes the matrices inside the layers; AdamW takes embedding, head, router, the indexer's head weights,
and all vectors. Blocks of Muon:

* W_UQ, W_UK, W_UV (``q_up``, ``k_up``, ``v_up`` of the main attention): one per head under Muon Split,
  else one. A head of W_UQ keeps its rotary rows: they are rows of its matrix (192 + 64 in GLM-5).
* gate and up projections, stored one above the other: one each. Every expert is a matrix of its own.
* all else (W_DQ, W_DKV with the shared rotary key's rows, W_O, MTP's join, the indexer's projections): one.
"""

import torch
import torch.distributed as dist

from model.optim.muon import Muon
from model.transformer import Transformer

SPLIT_BY_HEAD = ("attention.q_up.weight", "attention.k_up.weight", "attention.v_up.weight")
GATE_AND_UP = ("gate_up", "gate_up.weight")
ADAMW_MATRICES = ("embed.weight", "head.weight", "router.weight", "head_weight.weight")


class Optimizers:
    """Muon and AdamW in step: the part of ``torch.optim.Optimizer``'s face that a training loop uses."""

    def __init__(self, muon: Muon | None, adamw: torch.optim.AdamW | None):
        self.parts = {name: part for name, part in (("muon", muon), ("adamw", adamw)) if part is not None}

    @property
    def param_groups(self) -> list[dict]:
        """Muon's groups first; setting ``group["lr"]`` takes effect at the next step."""
        return [group for part in self.parts.values() for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts.values():
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts.values():
            part.zero_grad(set_to_none=set_to_none)

    def reset(self) -> None:
        """Forget momentum and second moments, as at the first step."""
        for part in self.parts.values():
            part.state.clear()

    def state_dict(self) -> dict:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict) -> None:
        """Raises ``ValueError`` where the state belongs to other parameters."""
        if state.keys() != self.parts.keys():
            raise ValueError(f"the state is of {sorted(state)}, this optimizer has {sorted(self.parts)}")
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def build_optimizer(
    model: Transformer,
    *,
    muon_lr: float,
    adamw_lr: float,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.1,
    muon_split: bool = True,
    shard: dist.ProcessGroup | None = None,
) -> Optimizers:
    """Optimizers over the parameters that require a gradient now. Vectors are not decayed."""
    matrices, decayed, vectors = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dim() < 2:
            vectors.append(parameter)
        elif name.endswith(ADAMW_MATRICES):
            decayed.append(parameter)
        else:
            matrices.append((parameter, blocks_of(name, model.config.num_heads, muon_split)))
    muon = adamw = None
    if matrices:
        muon = Muon(matrices, lr=muon_lr, momentum=momentum, weight_decay=weight_decay, shard=shard)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if groups:
        adamw = torch.optim.AdamW(groups, lr=adamw_lr, betas=betas, eps=1e-8, fused=True)
    return Optimizers(muon, adamw)


def blocks_of(name: str, heads: int, split: bool) -> int:
    """Into how many blocks Muon cuts the matrix (or each expert) of that parameter name."""
    if name.endswith(SPLIT_BY_HEAD):
        return heads if split else 1
    return 2 if name.endswith(GATE_AND_UP) else 1
