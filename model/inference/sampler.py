"""From logits to tokens: filters, and draws that depend on a request's seed and a token's number alone.

A token is the argmax of its filtered log-probabilities plus Gumbel noise, which draws exactly from the
distribution. The noise comes from a counter-based hash of (seed, number of the token, vocabulary entry): no
state, so neither the batch nor a restart nor speculation changes it.

R rows, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch

from model.inference.request import SamplingParams

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's increment and multipliers
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


@dataclass(frozen=True)
class Draw:
    """How a row is drawn: its request's parameters and seed, and the number of its token in the answer."""

    params: SamplingParams
    seed: int
    number: int


def choose(logits_RV: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    """A token for each row (R,), int64."""
    random = [row for row, draw in enumerate(draws) if draw.params.temperature > 0]
    if len(random) == len(draws):
        return _draw(logits_RV, draws)
    token_R = _first_best(logits_RV)
    if random:
        rows = on_device(random, logits_RV.device)
        token_R[rows] = _draw(logits_RV[rows], [draws[row] for row in random])
    return token_R


def _draw(logits_RV: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    temperature = [draw.params.temperature for draw in draws]
    scale_R1 = on_device(temperature, logits_RV.device, torch.float64).unsqueeze(-1)
    score_RV = logits_RV.double() / scale_R1
    filtered = [n for n, d in enumerate(draws) if d.params.top_k or d.params.top_p < 1 or d.params.min_p]
    if filtered:
        rows = on_device(filtered, logits_RV.device)
        score_RV[rows] = keep_likely(score_RV[rows], [draws[n].params for n in filtered])
    return _first_best(gumbel(draws, logits_RV.shape[-1], logits_RV.device).add_(score_RV))


def _first_best(value_RV: torch.Tensor) -> torch.Tensor:
    """``argmax`` of each row (R,), for which numpy takes a fraction of torch's time on a CPU."""
    if value_RV.device.type != "cpu":
        return value_RV.argmax(-1)
    wide_RV = value_RV.detach().to(torch.promote_types(value_RV.dtype, torch.float32))
    return torch.from_numpy(wide_RV.numpy().argmax(-1))


def keep_likely(score_RV: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Scores (after the temperature) with -inf where top_k, then top_p, then min_p removes an entry.

    top_p keeps the fewest entries, best first, whose probabilities (of those that top_k left) reach it.
    """
    V = score_RV.shape[-1]

    def column(values: list) -> torch.Tensor:
        return on_device(values, score_RV.device, torch.float64).unsqueeze(-1)

    best_RV, order_RV = score_RV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(V, device=score_RV.device)
    best_RV = best_RV.masked_fill(rank_V >= column([p.top_k or V for p in params]), float("-inf"))
    chance_RV = best_RV.softmax(-1)
    before_RV = chance_RV.cumsum(-1) - chance_RV
    drop_RV = before_RV >= column([p.top_p if p.top_p < 1 else 2.0 for p in params])
    drop_RV |= chance_RV < column([p.min_p for p in params]) * chance_RV[:, :1]
    drop_RV[:, 0] = False
    return torch.empty_like(score_RV).scatter_(-1, order_RV, best_RV.masked_fill(drop_RV, float("-inf")))


def gumbel(draws: list[Draw], vocabulary: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise (R, V), float64."""
    seed_R = np.array([d.seed % _WORD for d in draws], dtype=np.uint64)
    number_R = np.array([d.number for d in draws], dtype=np.uint64)
    base_R1 = on_device(_mix(_mix(seed_R) + number_R).view(np.int64), device).unsqueeze(-1)
    x = base_R1 + torch.arange(1, vocabulary + 1, device=device) * _signed(_GOLDEN)
    for shift, factor in zip(_SHIFTS, (*_MULTIPLIERS, None), strict=True):
        x ^= _shifted(x, shift)
        if factor is not None:
            x *= _signed(factor)
    uniform_RV = _shifted(x, 11).double().add_(0.5).mul_(2.0**-53)
    return uniform_RV.log_().neg_().log_().neg_()


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """The 64 bits moved right, zeros from the left: int64 shifts alone keep the sign."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mix(value_R: np.ndarray) -> np.ndarray:
    """splitmix64 of uint64, which wrap around."""
    value_R = value_R + np.uint64(_GOLDEN)
    for shift, factor in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        value_R = (value_R ^ (value_R >> np.uint64(shift))) * np.uint64(factor)
    return value_R


def on_device(
    values: list | np.ndarray, device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A small tensor, copied without a wait: ``torch.tensor(values, device=device)`` waits until the device
    has done all that came before.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD // 2 else value


def log_probabilities(logits_RV: torch.Tensor) -> torch.Tensor:
    """The model's own, before temperature and filters: at least float32."""
    return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32)).log_softmax(-1)


def best(logprob_RV: torch.Tensor, counts: list[int]) -> list[tuple[tuple[int, float], ...]]:
    """For each row its ``counts[row]`` most probable tokens with their log-probabilities, best first."""
    most = min(max(counts, default=0), logprob_RV.shape[-1])
    if not most:
        return [()] * len(counts)
    value, token = logprob_RV.topk(most, dim=-1)
    rows = zip(token.tolist(), value.tolist(), counts, strict=True)
    return [tuple(zip(ids[:n], values[:n], strict=True)) for ids, values, n in rows]


def stop_string(tail: bytes, new: bytes, stops: tuple[str, ...]) -> tuple[str | None, bytes]:
    """The stop string that a token's bytes complete first, and the bytes to remember for the next token."""
    text, longest = tail + new, max(len(stop.encode()) for stop in stops)
    ends = [(text.find(data := stop.encode()) + len(data), stop) for stop in stops if stop.encode() in text]
    return (min(ends)[1] if ends else None), text[-(longest - 1) :] if longest > 1 else b""
