"""One request inside the engine: its tokens, how many of them are in the cache, and where."""

import math
from dataclasses import dataclass, field

import numpy as np

from model.inference.prefix import Node
from model.inference.request import Completion, Event, SamplingParams, Token
from model.inference.sampler import Draw, stop_string


@dataclass(eq=False)
class Sequence:
    id: int
    prompt_length: int
    params: SamplingParams
    seed: int
    ids: list[int]  # prompt and sampled tokens
    completion: Completion = field(default_factory=Completion)
    cancelled: bool = False
    read: int = 0  # tokens whose latents are in the cache
    drafted: int = 1  # the MTP block's next slot, see speculative.py
    pages: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)  # shared: the first of the pages
    drafts: list[int] = field(default_factory=list)  # guesses of the tokens behind ``ids``
    prompt_tokens: list[Token] = field(default_factory=list)
    prompt_given: bool = False
    matched: bool = False  # cached_tokens was counted
    tail: bytes = b""  # of the sampled text, for stop strings
    routed: list[np.ndarray] = field(
        default_factory=list
    )  # experts under earlier weights, of its first tokens

    @property
    def unread(self) -> int:
        return len(self.ids) - self.read

    @property
    def wants_prompt(self) -> bool:
        return self.params.prompt_logprobs and not self.prompt_given

    @property
    def samples(self) -> bool:
        return self.params.max_new_tokens > 0

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return self.params.max_new_tokens - (len(self.ids) - self.prompt_length)

    def draw(self, ahead: int = 0) -> Draw:
        """The draw of the next token, or of one further ahead."""
        return Draw(self.params, self.seed, len(self.ids) - self.prompt_length + ahead)

    def take(self, token: Token, tokenizer) -> None:
        """Append a sampled token and see whether it ends the request."""
        if not math.isfinite(token.logprob):
            raise ValueError("the model gave logits that are not finite; check the weights")
        self.ids.append(token.id)
        self.completion.tokens.append(token)
        if token.id in self.params.stop_ids:
            self._stop(token.id)
        elif self.params.stop_strings:
            data = tokenizer.token_bytes(token.id)
            found, self.tail = stop_string(self.tail, data, self.params.stop_strings)
            if found is not None:
                self._stop(found)
        if self.completion.finish is None and not self.left:
            self.completion.finish = "length"

    def take_prompt(self) -> Event:
        """The prompt's log-probabilities, all read."""
        self.completion.prompt, self.prompt_given = self.prompt_tokens, True
        return Event(self.id, prompt=self.prompt_tokens)

    def forget_cache(self) -> None:
        """Nothing of it is in the cache any more; it is read again from its first token."""
        self.read, self.drafted = 0, 1
        self.pages, self.nodes, self.drafts = [], [], []
        if not self.prompt_given:
            self.prompt_tokens = []

    def _stop(self, by: int | str) -> None:
        self.completion.finish, self.completion.stop = "stop", by
