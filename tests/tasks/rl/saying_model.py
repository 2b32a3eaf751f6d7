"""Small checkpoints that say what they are told to, through the real network."""

import itertools
from pathlib import Path

import torch
from small_tokenizer import train_tokenizer

from model.chat.files import save_chat_files
from model.chat.tokenizer import Tokenizer
from model.config import preset
from model.hub import save_folder
from model.transformer import Transformer

CONTEXT = 256
SHAPE = dict(
    hidden_size=32, num_layers=2, ffn_size=64, num_heads=2, q_latent=16, kv_latent=16, qk_nope_dim=8,
    qk_rope_dim=8, v_dim=8, num_experts=4, expert_ffn_size=16, index_heads=2, index_dim=16, index_top_k=32,
    mtp_steps=0, max_positions=CONTEXT,
)  # fmt: skip
SHARPNESS = 14.0  # of the logits: another token comes now and then, so that there is something to learn
SHARP = 30.0  # and never


def one_that_says(
    folder: Path, turns: list[list[str]], context: int = CONTEXT, sharpness: float = SHARPNESS
) -> Path:
    """A checkpoint whose next token follows from the present one along the turns, which are names of special
    tokens and words; where turns part, each way is as likely.
    """
    train_tokenizer(folder, tags_are_special=False)
    tokenizer = Tokenizer.load(folder)
    names = tokenizer.ids_by_name
    shape = {**SHAPE, "vocab_size": tokenizer.vocab_size, "max_positions": context}
    config = preset("tiny").model_copy(update=shape)
    model = Transformer(config, seed=4, indexer=True)
    with torch.no_grad():
        noise = torch.randn(model.embed.weight.shape, generator=torch.Generator().manual_seed(1))
        embedding = torch.nn.functional.normalize(noise, dim=-1)
        model.embed.weight.copy_(embedding * config.hidden_size**0.5)
        model.head.weight.zero_()
        for turn in turns:
            ids = [[names[part]] if part in names else tokenizer.encode(part) for part in turn]
            chain = [token for part in ids for token in part]
            assert len(set(chain)) == len(chain), "a token stands twice, so its successor is not unique"
            for token, following in itertools.pairwise(chain):
                model.head.weight[following] += sharpness / config.hidden_size**0.5 * embedding[token]
    save_folder(model, folder)
    save_chat_files(folder, context)
    return folder
