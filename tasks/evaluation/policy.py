"""A checkpoint as the policy that the suites ask, on this machine."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from environments.interface import Mode
from evals.policy import Attention, Chat, IndexerQuality, Reply, Scored
from model.chat.parser import parse
from model.chat.renderer import render
from model.chat.segments import segments
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT, thinking_of
from model.inference.decode import DecodeMode, decode_mode
from model.inference.engine import Engine
from model.inference.generate import PREFILL_CHUNK, generate, score
from model.inference.native.build import NoNativeCode
from model.inference.weights import for_inference
from model.transformer import Transformer
from tasks.training.setup import load_model

CHAT_TOKENS = 4096  # of a batch that is scored: chats differ in length, and a batch is as wide as its longest


class LocalPolicy:
    """Answers chats and continues documents; the model's own attention is sparse once it has an indexer.

    ``decode``: how it decodes, "native" or why not; two ways may round to other tokens.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer):
        self.model, self.tokenizer = model.eval(), tokenizer
        self.top_k = model.config.index_top_k
        controls: tuple[Attention, ...] = ("dense", "window", "random")
        self.attentions: tuple[Attention, ...] = ("sparse", *controls) if model.has_indexer else controls
        self._start = tokenizer.ids_by_name[END_OF_TEXT]
        self._decode, self.decode = _quickest(model)
        # One for all chats: earlier turns, and tools that many of them begin with, are not read again.
        self._chats = Engine(model, prefill_chunk=PREFILL_CHUNK, decode=self._decode)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> "LocalPolicy":
        return cls(for_inference(load_model(folder, device)), Tokenizer.load(folder))

    def generate(
        self, chats: list[Chat], mode: Mode, max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[Reply]:
        prompts = [
            render(self.tokenizer, chat.messages, chat.tools, mode, generation_prompt=True).ids
            for chat in chats
        ]
        samples = generate(
            self.model, prompts, max_new_tokens=max_new_tokens, stop_ids=self.tokenizer.stop_ids,
            temperature=temperature, seed=seed, engine=self._chats,
        )  # fmt: skip
        thinking = thinking_of(mode).enabled
        replies = []
        for chat, sample in zip(chats, samples, strict=True):
            parsed = parse(self.tokenizer, sample.ids, chat.tools, thinking)
            replies.append(Reply(parsed.message, len(sample.ids), parsed.valid, parsed.reason, parsed.finish))
        return replies

    def complete(
        self,
        prompts: list[str],
        max_new_tokens: int,
        attention: Attention,
        stop: str | None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        rows = [[self._start, *ids] for ids in self.tokenizer.encode_batch(prompts)]
        samples = generate(
            self.model, rows, max_new_tokens=max_new_tokens, stop_ids=self._ids_that_hold(stop),
            temperature=temperature, seed=seed, attention=attention,
            decode=self._decode if attention == self.attentions[0] else None,
        )  # fmt: skip
        return [self.tokenizer.decode(sample.ids) for sample in samples]

    def logprobs(self, texts: list[str], max_tokens: int, attention: Attention) -> list[Scored]:
        rows = self._documents(texts, max_tokens)
        return [
            Scored(-logprobs, *self._sizes_and_pieces(row[1:]))
            for row, logprobs in zip(rows, score(self.model, rows, attention=attention), strict=True)
        ]

    def chat_nats(self, chats: list[Chat], mode: Mode) -> list[np.ndarray]:
        rendered = [render(self.tokenizer, chat.messages, chat.tools, mode) for chat in chats]
        logprobs = score(
            self.model,
            [chat.ids for chat in rendered],
            attention=self.attentions[0],
            batch_tokens=CHAT_TOKENS,
        )
        masks = [np.array(chat.train[1:], dtype=bool) for chat in rendered]
        return [-values[mask] for values, mask in zip(logprobs, masks, strict=True)]

    @torch.inference_mode()
    def indexer_quality(self, texts: list[str], max_tokens: int) -> list[IndexerQuality]:
        """One text a pass: a value of each text is wanted, and the model gives means over a batch."""
        results = []
        for row in self._documents(texts, max_tokens):
            tokens = torch.tensor([row[:-1]], device=self.model.embed.weight.device)
            out = self.model(tokens, attention="dense", indexer_loss=True, measure=True)
            held, best, window = out.mass_L3.unbind(-1)
            parts = (out.indexer_kl_L, held, best, window)
            results.append(IndexerQuality(*(values.tolist() for values in parts)))
        return results

    def segments(self, chat: Chat, mode: Mode) -> list[tuple[str, bool]]:
        return segments(self.tokenizer, chat.messages, chat.tools, mode)

    def _documents(self, texts: list[str], max_tokens: int) -> list[list[int]]:
        """The token that stands between documents, then at most ``max_tokens`` of each text."""
        return [[self._start, *ids[:max_tokens]] for ids in self.tokenizer.encode_batch(texts)]

    def _sizes_and_pieces(self, ids: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        pieces = [self.tokenizer.token_bytes(token) for token in ids]
        sizes = np.array([len(piece) for piece in pieces])
        return sizes, [piece.decode("utf-8", errors="replace") for piece in pieces]

    def _ids_that_hold(self, text: str | None) -> set[int]:
        if text is None:
            return {self._start}
        wanted = text.encode()
        ids = range(self.tokenizer.vocab_size)
        return {i for i in ids if wanted in self.tokenizer.token_bytes(i)} | {self._start}


def _quickest(model: Transformer) -> tuple[DecodeMode, str]:
    """The way to decode, and it in words for the record.

    Native code where it can decode the model: half the time of torch's for one of tiny's size.
    """
    other = decode_mode(None, model.embed.weight.device)
    if other == "graphs":
        return other, other
    try:
        Engine(model, pages=1, max_running=1, max_waiting=1, decode="native")
    except NoNativeCode as error:
        return other, f"{other}: {error}"
    return "native", "native"
