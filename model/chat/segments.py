"""A chat as a person may read it: what the model has to sample told apart from what it is given."""

from typing import Any

from model.chat.renderer import render
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import Thinking


def segments(
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    tools: list[dict] | None = None,
    mode: str | Thinking = "interleaved",
) -> list[tuple[str, bool]]:
    """The rendered chat as runs of text, and whether the loss (so also the sampler) is on them."""
    rendered = render(tokenizer, messages, tools, mode)
    runs: list[tuple[list[int], bool]] = []
    for token, trained in zip(rendered.ids, rendered.train, strict=True):
        if not runs or runs[-1][1] != trained:
            runs.append(([], trained))
        runs[-1][0].append(token)
    return [(tokenizer.decode(ids), trained) for ids, trained in runs]
