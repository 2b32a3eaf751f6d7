"""One pass of the model for many sequences, and what each of them gets from it.

M tokens of the pass, R rows that are sampled, D hidden, V vocabulary.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

import torch

from model.attention.cache import PagedCache
from model.attention.mla import AttentionOptions
from model.inference.decode import Decoded, Decoder
from model.inference.request import Event, Token
from model.inference.sampler import best, choose, log_probabilities, on_device
from model.inference.scheduler import Reading
from model.inference.speculative import Drafter
from model.transformer import Transformer

PROMPT_ROWS = 256  # of logits at once, where a prompt's log-probabilities are asked for


@dataclass
class Outcome:
    events: list[Event] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    @classmethod
    def of_pass(
        cls,
        model: Transformer,
        cache: PagedCache,
        readings: list[Reading],
        options: AttentionOptions,
        version: int,
        tokenizer,
        drafter: Drafter | None,
    ) -> Self:
        """Read, sample, and draft for the next pass; the sequences have their new tokens afterwards."""
        ids = [token for reading in readings for token in reading.ids]
        tokens_M = torch.tensor(ids, device=model.embed.weight.device)
        view = model.paged_view(cache, [reading.chunk for reading in readings])
        hidden_MD = model.read(tokens_M, view, options)
        sampled = _sample(model, readings, hidden_MD, version)
        outcome, offset = cls(), 0
        for reading in readings:
            rows = hidden_MD[offset : offset + reading.count]
            event = _prompt(model, reading, rows, version)
            _continue(reading, sampled.get(reading.sequence.id), event, tokenizer, outcome.counts)
            if event.tokens or event.completion is not None or event.prompt is not None:
                outcome.events.append(event)
            offset += reading.total
        if drafter is not None:
            drafter.keep_states(readings, hidden_MD)
            drafter.follow(readings, hidden_MD)
        return outcome

    @classmethod
    def of_decoding(cls, decoder: Decoder, readings: list[Reading], version: int, tokenizer) -> Self:
        """The same for a pass that ``decoder`` takes."""
        decoded, outcome = decoder.read(readings), cls(counts=Counter(decode_passes=1))
        tokens = _draw_all(decoded, readings, version)
        for reading, token in zip(readings, tokens, strict=True):
            event = Event(reading.sequence.id)
            _continue(reading, [token], event, tokenizer, outcome.counts)
            outcome.events.append(event)
        return outcome


def _draw_all(decoded: Decoded, readings: list[Reading], version: int) -> list[Token]:
    """A token for each reading; the most probable ones are known already."""
    params = [reading.sequence.params for reading in readings]
    if any(own.temperature > 0 or own.top_logprobs for own in params):
        token_R = choose(decoded.logits_RV, [reading.sequence.draw() for reading in readings])
        return _tokens(decoded.logprob_RV, token_R, [own.top_logprobs for own in params], version)
    token, logprob = decoded.best_2R.tolist()
    return [Token(*pair, version) for pair in zip(map(int, token), logprob, strict=True)]


def _sample(
    model: Transformer, readings: list[Reading], hidden_MD: torch.Tensor, version: int
) -> dict[int, list[Token]]:
    """For each sequence that has read all: a token behind its last one, and one behind each draft."""
    rows, draws, asking, offset = [], [], [], 0
    for reading in readings:
        sequence = reading.sequence
        if reading.count == sequence.unread and sequence.samples:
            first = offset + reading.count - 1
            places = range(len(reading.drafts) + 1)
            rows += [first + ahead for ahead in places]
            draws += [sequence.draw(ahead) for ahead in places]
            asking.append((sequence.id, len(places)))
        offset += reading.total
    if not rows:
        return {}
    logits_RV = model.logits(hidden_MD[on_device(rows, hidden_MD.device)])
    logprob_RV = log_probabilities(logits_RV)
    token_R = choose(logits_RV, draws)
    tokens = _tokens(logprob_RV, token_R, [draw.params.top_logprobs for draw in draws], version)
    given, start = {}, 0
    for number, count in asking:
        given[number] = tokens[start : start + count]
        start += count
    return given


def _tokens(logprob_RV: torch.Tensor, token_R: torch.Tensor, tops: list[int], version: int) -> list[Token]:
    token_R1 = token_R.unsqueeze(-1)
    # One copy for both: float64 holds every token's number and every log-probability.
    both_2R = torch.cat([token_R1.double(), logprob_RV.gather(-1, token_R1).double()], 1).t()
    token, logprob = both_2R.tolist()
    values = zip(map(int, token), logprob, best(logprob_RV, tops), strict=True)
    return [Token(token, logprob, version, top) for token, logprob, top in values]


def _prompt(model: Transformer, reading: Reading, hidden_TD: torch.Tensor, version: int) -> Event:
    """The log-probabilities of the prompt's tokens behind those that were read."""
    sequence = reading.sequence
    if not sequence.wants_prompt:
        return Event(sequence.id)
    targets = sequence.ids[reading.first + 1 : min(reading.first + reading.count + 1, sequence.prompt_length)]
    for start in range(0, len(targets), PROMPT_ROWS):
        part = torch.tensor(targets[start : start + PROMPT_ROWS], device=hidden_TD.device)
        logprob_RV = log_probabilities(model.logits(hidden_TD[start : start + len(part)]))
        sequence.prompt_tokens += _tokens(
            logprob_RV, part, [sequence.params.top_logprobs] * len(part), version
        )
    done = len(sequence.prompt_tokens) == sequence.prompt_length - 1
    return sequence.take_prompt() if done else Event(sequence.id)


def _continue(
    reading: Reading, sampled: list[Token] | None, event: Event, tokenizer, counts: Counter
) -> None:
    """Give a sequence its tokens, up to the first draft that is not what was sampled."""
    sequence = reading.sequence
    sequence.read += reading.count
    sequence.drafts = []
    if reading.first < sequence.prompt_length:
        counts["prompt_tokens"] += min(reading.count, sequence.prompt_length - reading.first)
    if sampled:
        try:
            for token, draft in zip(sampled, [*reading.drafts, None], strict=True):
                sequence.take(token, tokenizer)
                event.tokens.append(token)
                if sequence.completion.finish is not None or token.id != draft:
                    break
                sequence.read += 1
        except Exception as error:  # this request's alone: its logits, or the tokenizer at its token
            sequence.completion.finish, sequence.completion.error = "error", str(error)
        counts["sampled_tokens"] += len(event.tokens)
        if reading.drafts:
            counts["draft_passes"] += 1
            counts["drafts"] += len(reading.drafts)
            counts["drafts_kept"] += len(event.tokens) - 1
    elif not sequence.samples and not sequence.unread:
        sequence.completion.finish = "length"
    if sequence.completion.finish is not None:
        event.completion = sequence.completion
