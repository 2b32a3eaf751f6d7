"""A small batched sampler over the latent cache, and the likelihood of given tokens.

    samples = generate(model, prompts, max_new_tokens=64, stop_ids=tokenizer.stop_ids, temperature=1.0)
    logprobs = score(model, rows)

What a row gets does not depend on the rows beside it: padding is masked, and every row draws from a generator
of its own. (Attention "random" is the exception: it draws keys for the batch as a whole.)

B batch, T tokens (queries), V vocabulary.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from model.attention.mla import Mode
from model.kernels.registry import linear_cross_entropy
from model.transformer import Transformer

# Tokens of a batch, padding and room for the answer included: it bounds the memory of cache and activations.
BATCH_TOKENS = 32_768
# Finished rows are dropped when no more than this share goes on: dropping copies the cache.
KEEP_ROWS = 0.75


@dataclass
class Sample:
    ids: list[int] = field(default_factory=list)  # the sampled tokens, a stop token included
    logprobs: list[float] = field(default_factory=list)  # nats, of the model itself: before the temperature
    stopped: bool = False  # by a stop token, not by the limit


@torch.inference_mode()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    temperature: float = 0.0,
    seed: int = 0,
    attention: Mode = "dense",
    top_k: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Sample]:
    """Continue each prompt (token ids) up to a stop token or ``max_new_tokens``, in the prompts' order.

    ``temperature`` 0 takes the most probable token. ``seed`` and a prompt's place in the list fix its draws.
    ``attention`` and ``top_k`` are the model's. Raises ``ValueError`` for an empty prompt.
    """
    if temperature < 0 or max_new_tokens < 1:
        raise ValueError("sampling needs a temperature of 0 or more and max_new_tokens of 1 or more")
    samples = [Sample() for _ in prompts]
    for numbers in _batches(prompts, max_new_tokens, batch_tokens):
        chances_BT = np.stack([np.random.default_rng([seed, n]).random(max_new_tokens) for n in numbers])
        batch = _Batch(model, [prompts[n] for n in numbers], max_new_tokens, attention, top_k)
        rows = np.array(numbers)
        for step in range(max_new_tokens):
            token_B, logprob_B = _choose(batch.logits_BV.float(), temperature, chances_BT[:, step])
            for n, token, logprob in zip(rows, token_B.tolist(), logprob_B.tolist(), strict=True):
                if not samples[n].stopped:
                    samples[n].ids.append(token)
                    samples[n].logprobs.append(logprob)
                    samples[n].stopped = token in stop_ids
            going = np.array([not samples[n].stopped for n in rows])
            if not going.any() or step == max_new_tokens - 1:
                break
            if going.mean() <= KEEP_ROWS:
                rows, chances_BT, token_B = rows[going], chances_BT[going], token_B[batch.keep(going)]
            batch.advance(token_B)
    return samples


@torch.inference_mode()
def score(
    model: Transformer,
    rows: Sequence[Sequence[int]],
    *,
    attention: Mode = "dense",
    top_k: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[np.ndarray]:
    """Natural log-probabilities of every token of each row but its first, float32 of length len(row) - 1.

    A row is read as one document. Raises ``ValueError`` for an empty row.
    """
    scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(rows)
    device = model.embed.weight.device
    for numbers in _batches(rows, 0, batch_tokens):
        width = max(len(rows[n]) for n in numbers)
        # Padded right: causal attention never looks there.
        tokens_BT = torch.tensor([[*rows[n], *[0] * (width - len(rows[n]))] for n in numbers], device=device)
        hidden_BTD = model(tokens_BT, attention=attention, top_k=top_k).hidden_BTD[:, :-1]
        target_M = tokens_BT[:, 1:].flatten()
        loss_M = linear_cross_entropy(hidden_BTD.flatten(0, 1), model.head.weight, target_M)
        logprob_BT = -loss_M.view(len(numbers), -1).float().cpu().numpy()
        for n, logprob_T in zip(numbers, logprob_BT, strict=True):
            scores[n] = logprob_T[: len(rows[n]) - 1].copy()
    return scores


class _Batch:
    """Rows padded left to one length, decoded together behind one cache."""

    def __init__(self, model: Transformer, prompts, max_new_tokens: int, attention: Mode, top_k: int | None):
        self._model, self._attention, self._top_k = model, attention, top_k
        width = max(map(len, prompts))
        device = model.embed.weight.device
        tokens_BT = torch.tensor([[*[0] * (width - len(p)), *p] for p in prompts], device=device)
        self._start_B1 = torch.tensor([[width - len(p)] for p in prompts], dtype=torch.int32, device=device)
        # The last sampled token is not read again.
        self._cache = model.new_cache(len(prompts), width + max_new_tokens - 1)
        self._read(tokens_BT)

    def _read(self, tokens_BT: torch.Tensor) -> None:
        out = self._model(
            tokens_BT,
            start_BT=self._start_B1,
            attention=self._attention,
            top_k=self._top_k,
            cache=self._cache,
        )
        self.logits_BV = self._model.logits(out.hidden_BTD[:, -1])

    def advance(self, token_B: torch.Tensor) -> None:
        self._read(token_B.unsqueeze(-1))

    def keep(self, going: np.ndarray) -> torch.Tensor:
        """Drop the finished rows; returns the numbers of the others, to index the batch's tensors."""
        rows = torch.from_numpy(going.nonzero()[0]).to(self._start_B1.device)
        self._start_B1 = self._start_B1[rows]
        self._cache.keep(rows)
        return rows


def _batches(rows: Sequence[Sequence[int]], room: int, batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows of similar length; a batch's rows times its longest, with room, keep to the limit."""
    empty = [n for n, row in enumerate(rows) if not len(row)]
    if empty:
        raise ValueError(
            f"row {empty[0]} holds no token; start it with <|endoftext|> or a chat's first tokens"
        )
    order = sorted(range(len(rows)), key=lambda n: len(rows[n]))
    batch: list[int] = []
    for n in order:
        if batch and (len(batch) + 1) * (len(rows[n]) + room) > batch_tokens:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def _choose(
    logits_BV: torch.Tensor, temperature: float, chance_B: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row and its log-probability: the most probable one, or, with a temperature, the one at
    which the cumulative probability passes the row's chance (uniform in [0, 1), float64).
    """
    if temperature == 0:
        token_B1 = logits_BV.argmax(-1, keepdim=True)
    else:
        cumulative_BV = (logits_BV / temperature).double().softmax(-1).cumsum(-1)
        chance_B1 = torch.from_numpy(chance_B).to(logits_BV.device).unsqueeze(-1)
        token_B1 = torch.searchsorted(cumulative_BV, chance_B1 * cumulative_BV[:, -1:], right=True)
        token_B1.clamp_(max=logits_BV.shape[-1] - 1)
    return token_B1.squeeze(-1), logits_BV.log_softmax(-1).gather(-1, token_B1).squeeze(-1)
