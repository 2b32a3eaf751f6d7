"""Real checkpoints whose weights are set so that they recite: the next token follows from the current one.

They make an answer with reasoning, text of many alphabets and a tool call predictable, through the real
network, cache, sampler and parser.
"""

import torch

from model.chat.files import save_chat_files
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import (
    CALL,
    END_CALL,
    END_KEY,
    END_THINK,
    END_VALUE,
    KEY,
    OBSERVATION,
    THINK,
    USER,
    VALUE,
)
from model.config import SPECIAL_TOKENS, ModelConfig, preset
from model.hub import save_folder
from model.transformer import Transformer

REASONING = "think about it"
CONTENT = "Größe 42 🙂€"
TOOL, ARGUMENT, VALUE_TEXT = "search", "query", "ferry"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "find a page",
            "parameters": {"type": "object", "properties": {ARGUMENT: {"type": "string"}}},
        },
    }
]
CONTEXT = 2048
SHARPNESS = 14.0  # of the logits: the recited token has nearly all of the probability


def make_checkpoint(folder, behaviour: str, **shape: int) -> None:
    """Write a checkpoint into a folder with a tokenizer.

    ``behaviour``: "speaker" answers, "caller" calls, "babbler" answers until the context is full. ``shape``:
    sizes other than those of these tests.
    """
    tokenizer = Tokenizer.load(folder)
    model = Transformer(reciting_config(tokenizer, **shape), seed=1, indexer=True)
    with torch.no_grad():
        noise = torch.randn(model.embed.weight.shape, generator=torch.Generator().manual_seed(1))
        embedding = torch.nn.functional.normalize(noise, dim=-1)
        model.embed.weight.copy_(embedding * embedding.shape[1] ** 0.5)
        model.head.weight.zero_()
        for token, following in _successors(tokenizer, behaviour).items():
            model.head.weight[following] += SHARPNESS / embedding.shape[1] ** 0.5 * embedding[token]
    save_folder(model, folder)
    save_chat_files(folder, CONTEXT)


def reciting_config(tokenizer: Tokenizer, **shape: int) -> ModelConfig:
    small = dict(
        vocab_size=tokenizer.vocab_size, hidden_size=128, num_layers=2, ffn_size=64, num_heads=2,
        num_experts=4, expert_ffn_size=16, index_heads=2, mtp_steps=1, max_positions=CONTEXT,
    )  # fmt: skip
    return preset("tiny", **{**small, **shape})


def _successors(tokenizer: Tokenizer, behaviour: str) -> dict[int, int]:
    """The next token of every token: along the answer, and in one large circle for all others."""
    ids = tokenizer.ids_by_name
    spoken = [*tokenizer.encode(CONTENT), ids[USER]]
    if behaviour == "caller":
        argument = [ids[KEY], *tokenizer.encode(ARGUMENT), ids[END_KEY]]
        value = [ids[VALUE], *tokenizer.encode(VALUE_TEXT), ids[END_VALUE]]
        spoken = [ids[CALL], *tokenizer.encode(TOOL), *argument, *value, ids[END_CALL], ids[OBSERVATION]]
    answer = [ids[THINK], *tokenizer.encode(REASONING), ids[END_THINK], *spoken]
    assert len(set(answer)) == len(answer), "a token stands twice, so its successor is not unique"
    special = {ids[name] for name in SPECIAL_TOKENS}
    circle = [n for n in range(tokenizer.vocab_size) if n not in special and n not in answer]
    following = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
    following |= dict(zip(answer, answer[1:], strict=False))
    return following | {answer[-2]: circle[0]} if behaviour == "babbler" else following
