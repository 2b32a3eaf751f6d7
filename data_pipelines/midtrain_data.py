"""Sequences for mid-training: ``python -m data_pipelines.midtrain_data --recipe tiny``.

For each context length of the recipe three kinds of text by their share of the tokens: packages with their
files in import order, long documents, and synthetic items that ask for something far back. Packed best-fit
with document boundaries kept. Writes ``seq_<L>.tokens.npy`` (N, L), ``seq_<L>.starts.npy`` int32 (N, L) and
``meta.json``.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from data_pipelines.documents import read_documents
from data_pipelines.long_texts import KINDS, Text
from data_pipelines.mixing import quotas
from data_pipelines.tokens import Encoder, write_meta
from pipeline.errors import UserError
from pipeline.packing import best_fit, lay_out, split
from pipeline.stage import Context, run_stage

TEXTS_AT_ONCE = 16


def run(context: Context) -> dict[str, float]:
    """Draw, encode and pack for each context length."""
    encoder = Encoder(context.inputs["tokenizer"])
    documents = list(read_documents(context.inputs["curate"] / "documents"))
    shares = {kind: getattr(context.section, kind) for kind in KINDS if getattr(context.section, kind) > 0}
    if not shares:
        raise UserError(f"all shares of midtrain_data are 0: raise one of {', '.join(KINDS)} in the recipe")
    texts = {kind: KINDS[kind](documents, encoder, context.recipe.data_seed) for kind in shares}
    meta = {"dtype": encoder.dtype.str, "vocab_size": encoder.vocab_size, "contexts": {}}
    for length, tokens in sorted(context.section.contexts.items()):
        pieces, facts = [], {}
        for kind, quota in quotas(shares, tokens, set(shares)).items():
            drawn = _draw(texts[kind](length), quota, length, encoder)
            pieces += drawn
            facts[kind] = {"pieces": len(drawn), "tokens": sum(map(len, drawn))}
            done = sum(map(len, pieces))
            context.progress.update(f"length {length}", done / 1e6, tokens / 1e6, "Mtokens", kind)
        meta["contexts"][length] = {**_pack(pieces, length, encoder, context), "kinds": facts}
    write_meta(context.out, meta)
    context.facts["tokens"] = sum(entry["tokens"] for entry in meta["contexts"].values())
    return {"data/tokens": context.facts["tokens"]} | {
        f"data/packing_efficiency/{length}": entry["efficiency"] for length, entry in meta["contexts"].items()
    }


def _draw(texts: Iterator[Text], quota: int, length: int, encoder: Encoder) -> list[np.ndarray]:
    """Pieces of at most ``length`` tokens, ``quota`` in all; a whole text ends with ``<|endoftext|>``."""
    pieces: list[np.ndarray] = []
    tokens = 0
    while tokens < quota:
        batch = list(islice(texts, TEXTS_AT_ONCE))
        encoded = encoder.encode(text for text, _ in batch)
        for ids, (_, to_its_end) in zip(encoded, batch, strict=True):
            end = [encoder.end] if to_its_end else []
            for whole in split(np.append(ids, end).astype(encoder.dtype), length):
                piece = whole[: quota - tokens]
                if len(piece):
                    pieces.append(piece)
                    tokens += len(piece)
    return pieces


def _pack(pieces: list[np.ndarray], length: int, encoder: Encoder, context: Context) -> dict:
    """Write the rows of one context length in a seeded order."""
    rows = best_fit([len(piece) for piece in pieces], length)
    order = np.random.default_rng([context.recipe.data_seed, length]).permutation(len(rows))
    tokens_NL, starts_NL = lay_out(pieces, [rows[row] for row in order], length, encoder.end)
    np.save(context.out / f"seq_{length}.tokens.npy", tokens_NL)
    np.save(context.out / f"seq_{length}.starts.npy", starts_NL)
    filled = sum(map(len, pieces))
    return {"rows": len(rows), "tokens": filled, "pieces": len(pieces), "efficiency": filled / tokens_NL.size}


if __name__ == "__main__":
    run_stage("midtrain_data", run)
