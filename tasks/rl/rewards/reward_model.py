"""An outcome reward model: a policy's trunk with a scalar head, one number for a whole chat.

Trained on preference pairs with the loss of Bradley and Terry, -log sigmoid(chosen - rejected), which knows
differences alone; so a midpoint is measured on held-out pairs, and a reward is sigmoid(score - midpoint).

B chats, T tokens, D hidden.
"""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from model.hub import load_folder, save_folder
from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.files import write_whole
from pipeline.recipe.rl import RewardModel as Settings
from tasks.rl.rewards.preferences import Pair, counts
from tasks.training import checkpoint
from tasks.training.batches import rows_of_step

HEAD, FIGURES = "scalar_head.pt", "reward_model.json"
SAVE_EVERY_STEPS = 20


class RewardModel(nn.Module):
    def __init__(self, trunk: Transformer):
        super().__init__()
        self.trunk = trunk
        self.scalar = nn.Linear(trunk.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.scalar.weight)
        self.midpoint = 0.0

    def forward(self, chats: Sequence[Sequence[int]]) -> torch.Tensor:
        """A score (B,) for each chat, read behind its last token."""
        device = self.scalar.weight.device
        ends_B = torch.tensor([len(chat) - 1 for chat in chats], device=device)
        # The pads stand behind, where no token of the chat sees them.
        tokens_BT = torch.zeros(len(chats), max(map(len, chats)), dtype=torch.int64)
        for row, chat in enumerate(chats):
            tokens_BT[row, : len(chat)] = torch.tensor(chat)
        hidden_BTD = self.trunk(tokens_BT.to(device)).hidden_BTD
        return self.scalar(hidden_BTD[torch.arange(len(chats), device=device), ends_B])[:, 0]

    @torch.no_grad()
    def rewards(self, chats: Sequence[Sequence[int]]) -> list[float]:
        """Numbers in [0, 1]; one half lies between the chosen and the rejected of the held-out pairs."""
        return torch.sigmoid(self(chats) - self.midpoint).tolist()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_folder(self.trunk, folder)
        torch.save({"scalar": self.scalar.state_dict(), "midpoint": self.midpoint}, folder / HEAD)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        model = cls(load_folder(folder))
        head = torch.load(folder / HEAD, weights_only=True)
        model.scalar.load_state_dict(head["scalar"])
        model.midpoint = head["midpoint"]
        return model.to(device).eval()


def train_reward_model(
    trunk: Transformer,
    train: Sequence[Pair],
    heldout: Sequence[Pair],
    settings: Settings,
    folder: Path,
    seed: int,
    tell=lambda done, total, loss: None,
) -> dict[str, float]:
    """Train and write ``folder``; goes on from its own last checkpoint after a kill. Returns the share of
    held-out pairs that are told apart, of all and of each kind, and the final loss; ``finished`` reads them
    again. ``tell`` hears of each step. Raises ``UserError`` where there are no pairs.
    """
    if not train or not heldout:
        raise UserError(
            f"a reward model needs preference pairs; got {len(train)} to train, {len(heldout)} to measure: "
            "raise reward_model.pairs, or give families whose answers can be spoilt"
        )
    torch.manual_seed(seed)
    model = RewardModel(trunk).to(next(trunk.parameters()).device).train()
    parameters = [*trunk.parameters(), *model.scalar.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, betas=(0.9, 0.95))
    steps, step, loss = max(1, round(settings.epochs * len(train) / settings.pairs_per_step)), 0, 0.0
    if (state := checkpoint.load_latest(folder, model.scalar.weight.device)) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, loss = state["step"], state["loss"]
    while step < steps:
        optimizer.param_groups[0]["lr"] = settings.lr * (1 - step / steps)
        chosen = [train[row] for row in rows_of_step(len(train), settings.pairs_per_step, seed, step)]
        loss = _step(model, optimizer, parameters, chosen, settings.micro_batch)
        step += 1
        if not math.isfinite(loss):
            raise UserError(f"the reward model's loss is {loss} at step {step}: lower reward_model.lr")
        tell(step, steps, loss)
        if step % SAVE_EVERY_STEPS == 0 and step < steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.save(folder, step, {**state, "step": step, "loss": loss}, keep_last=1)
    figures = measure(model.eval(), heldout, settings.micro_batch) | {"loss": loss, "steps": steps}
    figures |= {f"trained_pairs/{kind}": number for kind, number in counts(train).items()}
    model.midpoint = figures["midpoint"]
    model.save(folder)
    shutil.rmtree(folder / checkpoint.FOLDER, ignore_errors=True)
    write_whole(folder / FIGURES, json.dumps(figures, indent=1))  # last: it says that all is there
    return figures


def finished(folder: Path) -> dict[str, float] | None:
    """The figures of the reward model in a folder; None where it is not finished."""
    path = folder / FIGURES
    return json.loads(path.read_text()) if path.exists() else None


def _step(
    model: RewardModel,
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    pairs: Sequence[Pair],
    at_once: int,
) -> float:
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for part in _parts(pairs, at_once):
        chosen, rejected = _scores(model, part)
        loss = -functional.logsigmoid(chosen - rejected).sum() / len(pairs)
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 1.0)
    optimizer.step()
    return total


def _parts(pairs: Sequence[Pair], at_once: int) -> list[Sequence[Pair]]:
    """Those of about a length together, as the shorter ones are padded."""
    ordered = sorted(pairs, key=lambda pair: max(len(pair.chosen), len(pair.rejected)))
    return [ordered[first : first + at_once] for first in range(0, len(ordered), at_once)]


def _scores(model: RewardModel, pairs: Sequence[Pair]) -> torch.Tensor:
    """Of the chosen and of the rejected: (2, pairs)."""
    return model([p.chosen for p in pairs] + [p.rejected for p in pairs]).view(2, len(pairs))


@torch.no_grad()
def measure(model: RewardModel, pairs: Sequence[Pair], at_once: int) -> dict[str, float]:
    """Share of pairs whose chosen chat scores higher (a tie counts half), and the middle between both."""
    parts = _parts(pairs, at_once)
    scores = torch.cat([_scores(model, part) for part in parts], dim=1)
    right = ((scores[0] > scores[1]) + 0.5 * (scores[0] == scores[1])).tolist()
    by_kind: dict[str, list[float]] = {}
    for pair, value in zip([pair for part in parts for pair in part], right, strict=True):
        by_kind.setdefault(pair.kind, []).append(value)
    shares = {f"accuracy/{kind}": sum(found) / len(found) for kind, found in sorted(by_kind.items())}
    return {
        "accuracy": sum(right) / len(right),
        "pairs": len(pairs),
        **shares,
        "midpoint": scores.mean().item(),
    }
