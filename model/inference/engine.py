"""The engine: many requests at once through one model, token ids in and token ids out.

    engine = Engine(load_folder(folder), tokenizer=tokenizer)
    number = engine.add(prompt_ids, SamplingParams(max_new_tokens=64, stop_ids=tokenizer.stop_ids))
    while engine.has_work:
        for event in engine.step():
            ...
    completions = engine.generate(prompts, params)

What a request gets depends on its prompt, parameters and seed, and on the weights: not on the requests beside
it, on chunks, shared prefixes or drafts (up to the rounding of float sums; see docs/engine.md). ``add`` and
``cancel`` may be called from another thread than ``step``; everything else belongs to one thread.

M tokens of a pass, R rows that are sampled, D hidden, V vocabulary.
"""

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import torch

from model.attention.mla import AttentionOptions, Mode
from model.config import PAGE_TOKENS
from model.inference.decode import DecodeMode, Decoder, decode_mode
from model.inference.outcome import Outcome
from model.inference.request import Completion, Event, QueueFull, SamplingParams
from model.inference.sampler import on_device
from model.inference.scheduler import Reading, Scheduler
from model.inference.sequence import Sequence
from model.inference.speculative import Drafter
from model.inference.weights import copy_state, read_state
from model.transformer import Transformer

# One pass of so many reads prompts where the others are quicker (256 requests on an H200: 5 ms against 29):
# most passes are quick ones then, and a prompt waits for three of them at most.
PROMPTS_EVERY = 4
COUNTS = (
    "passes", "decode_passes", "prompt_tokens", "sampled_tokens", "draft_passes", "drafts", "drafts_kept",
)  # fmt: skip


class Engine:
    def __init__(
        self,
        model: Transformer,
        *,
        tokenizer=None,
        version: int = 0,
        pages: int | None = None,
        page_size: int = PAGE_TOKENS,
        max_running: int = 256,
        max_waiting: int = 1024,
        prefill_chunk: int = 2048,
        draft_steps: int = 0,
        attention: Mode | None = None,
        top_k: int | None = None,
        decode: DecodeMode | None = None,
        record_experts: bool = False,
    ):
        """
        Args:
            tokenizer: for stop strings; anything with ``token_bytes(id) -> bytes``.
            version: of the weights.
            pages: of the cache, ``page_size`` tokens each; by default 65,536 tokens or one full context.
            max_running, max_waiting: requests in a pass; requests in the queue before ``QueueFull``.
            prefill_chunk: prompt tokens read in a pass, beside the running requests.
            draft_steps: tokens that the MTP block drafts for each pass; 0 for none.
            attention, top_k: the model's; sparse where it has an indexer.
            decode: how passes run in which every request reads one token, see ``decode.py``: "plain" as all
                others, "padded" to fixed shapes, in "graphs" on CUDA, which is the default there, or in
                "native" code on a CPU, which takes a C++ compiler and float32.
            record_experts: completions tell the experts of every token, for routing replay.
        """
        if draft_steps and model.mtp is None:
            raise ValueError("the model has no MTP block to draft with: set draft_steps to 0")
        if min(page_size, max_running, max_waiting, prefill_chunk) < 1 or draft_steps < 0:
            raise ValueError("the engine's sizes must be 1 or more, and draft_steps 0 or more")
        mode = attention or ("sparse" if model.has_indexer else "dense")
        pages = model.config.cache_pages(page_size, draft_steps) if pages is None else pages
        self.model, self.tokenizer, self.version = model, tokenizer, version
        self._options = AttentionOptions(mode, top_k or model.config.index_top_k)
        # One page more than asked for: the one that belongs to nobody.
        self._cache = model.new_cache(
            pages + 1, page_size, mtp=draft_steps > 0, indexer=mode == "sparse", routes=record_experts
        )
        self._drafter = Drafter(model, self._cache, draft_steps, self._options) if draft_steps else None
        self._decoder = self._make_decoder(decode, max_running)
        self._scheduler = Scheduler(
            pages=pages + 1, page_size=page_size, max_running=max_running, max_waiting=max_waiting,
            prefill_chunk=prefill_chunk, draft_steps=draft_steps, version=version,
            prompts_every=PROMPTS_EVERY if self._decoder is not None else 1,
        )  # fmt: skip
        self._numbers = count()
        self._sequences: dict[int, Sequence] = {}
        self._counts = dict.fromkeys(COUNTS, 0)

    def add(self, prompt_ids: Items[int], params: SamplingParams) -> int:
        """Queue a request and return its number.

        Raises ``QueueFull``, and ``ValueError`` for an empty prompt, ids that are no tokens, stop strings
        without a tokenizer, or a request that the cache can never hold.
        """
        ids, vocabulary = list(prompt_ids), self.model.config.vocab_size
        if not ids:
            raise ValueError(
                "the prompt holds no token; start it with <|endoftext|> or a chat's first tokens"
            )
        if wrong := [i for i in ids if not (isinstance(i, int) and 0 <= i < vocabulary)]:
            raise ValueError(f"{wrong[0]!r} is no token: ids are whole numbers from 0 to {vocabulary - 1}")
        if params.stop_strings and (self.tokenizer is None or not all(params.stop_strings)):
            raise ValueError("stop strings need a tokenizer and at least one character each")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        sequence = Sequence(next(self._numbers), len(ids), params, seed, ids)
        self._sequences[sequence.id] = sequence
        try:
            self._scheduler.enqueue(sequence)
        except (QueueFull, ValueError):
            del self._sequences[sequence.id]
            raise
        return sequence.id

    def cancel(self, request: int) -> None:
        """End a request; its pages are free at the start of the next step. Nothing for one that has ended."""
        sequence = self._sequences.get(request)
        if sequence is not None:
            sequence.cancelled = True

    @property
    def records_experts(self) -> bool:
        return self._cache.routes is not None

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def has_cancelled(self) -> bool:
        """Cancelled requests wait for ``sweep`` or ``step``."""
        return any(sequence.cancelled for sequence in list(self._sequences.values()))

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One pass of the model; an event for each request that got a token, its prompt's values or its end.

        An error of the pass ends the requests in it with ``finish="error"``; the others go on.
        """
        events = self.sweep()
        readings = self._scheduler.plan()
        if not readings:
            return events
        try:
            outcome = self._pass(readings)
        except Exception as error:  # of whatever kind: no client may wait for ever
            reason = f"{type(error).__name__}: {error}"
            events += [self._end(reading.sequence, "error", reason) for reading in readings]
            self._scheduler.restart(self.version)  # the tree has pages that were not filled
            return events
        for name, value in outcome.counts.items():
            self._counts[name] += value
        self._counts["passes"] += 1
        ended = []
        for reading in readings:
            sequence = reading.sequence
            known = sequence.read if self._drafter is None else min(sequence.read, sequence.drafted)
            if sequence.completion.finish != "error":
                self._scheduler.share(sequence, known)
            if sequence.completion.finish is not None:
                ended.append(sequence)
        self._keep_routes(ended)
        for sequence in ended:
            self._forget(sequence)
        return events + outcome.events

    def sweep(self) -> list[Event]:
        """End the cancelled requests."""
        cancelled = [sequence for sequence in list(self._sequences.values()) if sequence.cancelled]
        return [self._end(sequence, "cancelled") for sequence in cancelled]

    def fail(self, reason: str) -> list[Event]:
        """End every request with an error."""
        return [self._end(sequence, "error", reason) for sequence in list(self._sequences.values())]

    def load_weights(
        self, source: str | Path | Mapping[str, torch.Tensor], version: int, checksum: str | None = None
    ) -> None:
        """Go on with other weights of the same shape.

        ``source`` is a checkpoint folder, or tensors under the model's own names; ``checksum`` that of
        ``weights.checksum``. Running requests keep the tokens they have and go on under the new weights: all
        they had in the cache is computed again, as is every shared prefix. Raises ``ValueError`` or
        ``OSError`` for weights that do not fit or cannot be read, and then nothing has changed.
        """
        state = read_state(self.model, source, checksum)
        self._keep_routes(self._scheduler.running)
        self._scheduler.restart(version)
        self.version = version
        copy_state(self.model, state)

    def generate(
        self, prompts: Items[Items[int]], params: SamplingParams | Items[SamplingParams]
    ) -> list[Completion]:
        """The completions of all prompts, in their order. One ``params`` with a seed serves all: prompt n
        draws with ``seed + n``. Raises what ``add`` raises, ``QueueFull`` excepted: it waits for room.
        """
        if isinstance(params, SamplingParams):
            seed = params.seed
            params = [params if seed is None else replace(params, seed=seed + n) for n in range(len(prompts))]
        jobs = list(enumerate(zip(prompts, params, strict=True)))[::-1]
        place: dict[int, int] = {}
        completions: list[Completion] = [Completion() for _ in prompts]
        while jobs or place:
            try:
                while jobs:
                    number, (prompt, own) = jobs[-1]
                    place[self.add(prompt, own)] = number
                    jobs.pop()
            except QueueFull:
                pass
            except ValueError:
                for request in place:
                    self.cancel(request)
                self.sweep()
                raise
            for event in self.step():
                if event.completion is not None and event.request in place:
                    completions[place.pop(event.request)] = event.completion
        return completions

    def stats(self) -> dict[str, float]:
        """Figures since the start, and of this moment."""
        scheduler, counts = self._scheduler, self._counts
        passes = counts["draft_passes"]
        return {
            **counts,
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running),
            "pages": scheduler.pages.total,
            "pages_free": scheduler.pages.free,
            "prefix_pages": scheduler.prefix.nodes,
            "prefix_pages_unused": scheduler.prefix.unused,
            "preemptions": scheduler.preemptions,
            "cached_tokens": scheduler.cached_tokens,
            "cache_bytes_per_token": self._cache.bytes_per_token,
            "recorded_shapes": self._decoder.recorded if self._decoder is not None else 0,
            # Tokens of a pass with drafts: 1 without any use of them.
            "accept_length": 1 + counts["drafts_kept"] / passes if passes else 0.0,
        }

    def _make_decoder(self, mode: DecodeMode | None, most: int) -> Decoder | None:
        mode = decode_mode(mode, self.model.embed.weight.device)
        # A random control draws its keys by the shape of the pass, and drafts are read beside last tokens.
        if mode == "plain" or self._options.mode not in ("dense", "sparse") or self._drafter is not None:
            return None
        return Decoder(self.model, self._cache, self._options, mode, most)

    def _pass(self, readings: list[Reading]) -> Outcome:
        if self._decoder is not None and self._decoder.takes(readings):
            return Outcome.of_decoding(self._decoder, readings, self.version, self.tokenizer)
        return Outcome.of_pass(
            self.model, self._cache, readings, self._options, self.version, self.tokenizer, self._drafter
        )

    def _end(self, sequence: Sequence, finish, error: str = "") -> Event:
        sequence.completion.finish, sequence.completion.error = finish, error
        self._forget(sequence)
        return Event(sequence.id, completion=sequence.completion)

    def _keep_routes(self, sequences: Items[Sequence]) -> None:
        """Take the experts of sequences' tokens out of the cache, in one copy; those under earlier weights
        stay.
        """
        routes, size = self._cache.routes, self._cache.page_size
        if routes is None:
            return
        rows = []
        for sequence in sequences:
            slots = np.arange(sum(map(len, sequence.routed)), sequence.read)
            rows.append(np.array(sequence.pages, dtype=np.int64)[slots // size] * size + slots % size)
        if not any(map(len, rows)):
            return
        row_M = on_device(np.concatenate(rows), routes.device)
        taken = routes[:, row_M].transpose(0, 1).cpu().numpy()
        parts = np.split(taken, np.cumsum([len(own) for own in rows[:-1]]))
        for sequence, part in zip(sequences, parts, strict=True):
            if len(part):
                sequence.routed.append(part)

    def _forget(self, sequence: Sequence) -> None:
        self._keep_routes([sequence])
        if sequence.routed:
            sequence.completion.experts = np.concatenate(sequence.routed)
        del self._sequences[sequence.id]
        if sequence in self._scheduler.running:
            self._scheduler.remove(sequence)
        else:
            self._scheduler.waiting.remove(sequence)
