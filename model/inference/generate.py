"""Samples of many prompts through an engine of their own, and the likelihood of given tokens.

    samples = generate(model, prompts, max_new_tokens=64, stop_ids=tokenizer.stop_ids, temperature=1.0)
    logprobs = score(model, rows)

What a row gets does not depend on the rows beside it. (Attention "random" is the exception: it draws keys for
the batch as a whole.)

B batch, T tokens (queries), V vocabulary.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from model.attention.mla import Mode
from model.inference.decode import DecodeMode
from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.kernels.registry import linear_cross_entropy
from model.transformer import Transformer

# Tokens of a batch, room for the answers included: it bounds the memory of cache and activations.
BATCH_TOKENS = 32_768
PAGE_SIZE = 16
PREFILL_CHUNK = 8192  # prompt tokens of a pass


@dataclass
class Sample:
    ids: list[int] = field(default_factory=list)  # the sampled tokens, a stop token included
    logprobs: list[float] = field(default_factory=list)  # nats, of the model itself: before the temperature
    stopped: bool = False  # by a stop token, not by the limit


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
    decode: DecodeMode | None = None,
    engine: Engine | None = None,
) -> list[Sample]:
    """Continue each prompt (token ids) up to a stop token or ``max_new_tokens``, in the prompts' order.

    ``temperature`` 0 takes the most probable token. ``seed`` and a prompt's place in the list fix its draws.
    ``attention`` and ``top_k`` are the model's, ``decode`` is the engine's. An ``engine`` of the caller keeps
    what it has read for the next call; all of these are its own then. Raises ``ValueError`` for an empty
    prompt.
    """
    if temperature < 0 or max_new_tokens < 1:
        raise ValueError("sampling needs a temperature of 0 or more and max_new_tokens of 1 or more")
    _refuse_empty(prompts)
    if not prompts:
        return []
    if engine is None:
        longest = max(map(len, prompts)) + max_new_tokens + 2  # with room for the engine's look ahead
        tokens = sum(map(len, prompts)) + len(prompts) * (longest + PAGE_SIZE)
        tokens = min(max(longest, batch_tokens), tokens)
        engine = Engine(
            model, pages=-(-tokens // PAGE_SIZE), page_size=PAGE_SIZE, max_running=max(1, batch_tokens //
            longest), max_waiting=len(prompts), prefill_chunk=PREFILL_CHUNK, attention=attention, top_k=top_k,
            decode=decode,
        )  # fmt: skip
    base = SamplingParams(
        max_new_tokens=max_new_tokens, temperature=temperature, stop_ids=frozenset(stop_ids)
    )
    # Neighbours of like length are read as one batch.
    order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
    own = [replace(base, seed=(seed << 32) + n) for n in order]
    samples = [Sample() for _ in prompts]
    for n, completion in zip(order, engine.generate([prompts[n] for n in order], own), strict=True):
        if completion.finish == "error":
            raise ValueError(f"prompt {n} could not be continued: {completion.error}")
        logprobs = [token.logprob for token in completion.tokens]
        samples[n] = Sample(completion.ids, logprobs, completion.finish == "stop")
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
    for numbers in _batches(rows, batch_tokens):
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


def _batches(rows: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows of similar length; a batch's rows times its longest keep to the limit."""
    _refuse_empty(rows)
    order = sorted(range(len(rows)), key=lambda n: len(rows[n]))
    batch: list[int] = []
    for n in order:
        if batch and (len(batch) + 1) * len(rows[n]) > batch_tokens:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def _refuse_empty(rows: Sequence[Sequence[int]]) -> None:
    empty = [n for n, row in enumerate(rows) if not len(row)]
    if empty:
        raise ValueError(
            f"row {empty[0]} holds no token; start it with <|endoftext|> or a chat's first tokens"
        )
