"""Sequences for mid-training: ``python -m data_pipelines.midtrain_data --recipe tiny``.

For each context length of the recipe three kinds of text by their share of the tokens: whole packages with their
files in import order, long documents, and synthetic items that ask for something far back. Packed best-fit with
document boundaries kept. Writes ``seq_<L>.tokens.npy`` (N, L), ``seq_<L>.starts.npy`` int32 (N, L) and ``meta.json``.
"""

import math
import random
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from data_pipelines.documents import Document, read_documents
from data_pipelines.mixing import passes, quotas
from data_pipelines.packing import best_fit, lay_out, split
from data_pipelines.repositories import repository_texts
from data_pipelines.sources.selection import rank
from data_pipelines.tokens import Encoder, write_meta
from environments import long_context
from pipeline.errors import UserError
from pipeline.stage import Context, run_stage

KINDS = ("repository", "long_documents", "synthetic")
SHORTEST_ITEM = (
    64  # tokens; synthetic items are of all lengths from here to the context, evenly on a log scale
)
TEXTS_AT_ONCE = 16

Texts = Callable[[int, random.Random], Iterator[str]]  # (context length, generator) -> texts without end


def run(context: Context) -> dict[str, float]:
    """Draw, encode and pack for each context length."""
    encoder = Encoder(context.inputs["tokenizer"])
    documents = sorted(
        read_documents(context.inputs["curate"] / "documents"),
        key=lambda document: rank(context.recipe.data_seed, "midtrain", document.id),
    )
    section = context.section
    shares = {kind: getattr(section, kind) for kind in KINDS if getattr(section, kind) > 0}
    texts = {kind: _TEXTS[kind](documents, encoder) for kind in shares}
    meta = {"dtype": encoder.dtype.str, "vocab_size": encoder.vocab_size, "contexts": {}}
    for length, tokens in sorted(section.contexts.items()):
        pieces, facts = [], {}
        for kind, quota in quotas(shares, tokens, set(shares)).items():
            rng = random.Random(f"train/{context.recipe.data_seed}/{length}/{kind}")
            drawn = _draw(texts[kind](length, rng), quota, length, encoder)
            pieces += drawn
            facts[kind] = {"pieces": len(drawn), "tokens": sum(map(len, drawn))}
            context.progress.update(
                f"length {length}", sum(map(len, pieces)) / 1e6, tokens / 1e6, "Mtokens", kind
            )
        meta["contexts"][length] = {**_pack(pieces, length, encoder, context), "kinds": facts}
    write_meta(context.out, meta)
    context.facts["tokens"] = sum(entry["tokens"] for entry in meta["contexts"].values())
    return {"data/tokens": context.facts["tokens"]} | {
        f"data/packing_efficiency/{length}": entry["efficiency"] for length, entry in meta["contexts"].items()
    }


def _pack(pieces: list[np.ndarray], length: int, encoder: Encoder, context: Context) -> dict:
    """Write the rows of one context length in a seeded order."""
    rows = best_fit([len(piece) for piece in pieces], length)
    order = np.random.default_rng([context.recipe.data_seed, length]).permutation(len(rows))
    tokens_NL, starts_NL = lay_out(pieces, [rows[row] for row in order], length, encoder.end)
    np.save(context.out / f"seq_{length}.tokens.npy", tokens_NL)
    np.save(context.out / f"seq_{length}.starts.npy", starts_NL)
    filled = sum(map(len, pieces))
    return {"rows": len(rows), "tokens": filled, "pieces": len(pieces), "efficiency": filled / tokens_NL.size}


def _draw(texts: Iterator[str], quota: int, length: int, encoder: Encoder) -> list[np.ndarray]:
    """Pieces of at most ``length`` tokens, ``quota`` in all, each text ending with ``<|endoftext|>``."""
    pieces: list[np.ndarray] = []
    tokens = 0
    while tokens < quota:
        for ids in encoder.encode(islice(texts, TEXTS_AT_ONCE)):
            for piece in split(np.append(ids, encoder.end).astype(encoder.dtype), length):
                piece = piece[: quota - tokens]
                if len(piece):
                    pieces.append(piece)
                    tokens += len(piece)
    return pieces


def _repositories(documents: list[Document], encoder: Encoder) -> Texts:
    """Whole packages; where those are few, again from the start in another order."""
    packages = list(repository_texts(documents).values())
    if not packages:
        raise UserError(
            "no package has two Python files: set midtrain_data.repository to 0 or collect packages"
        )
    return lambda length, rng: (packages[index] for _, index in _passes(packages, rng))


def _long_documents(documents: list[Document], encoder: Encoder) -> Texts:
    """Documents that fill at least one context; the longest there are when none is so long."""
    by_length = sorted(documents, key=lambda document: -len(document.text))

    def texts(length: int, rng: random.Random) -> Iterator[str]:
        least = length * _CHARACTERS_PER_TOKEN
        long = [d.text for d in by_length if len(d.text) >= least] or [d.text for d in by_length[:8]]
        return (long[index] for _, index in _passes(long, rng))

    return texts


_CHARACTERS_PER_TOKEN = 4  # an upper bound for choosing documents that are long enough


def _synthetic(documents: list[Document], encoder: Encoder) -> Texts:
    """Items of every kind that evaluation knows, with keys that evaluation never asks for."""
    shortest, longest = 20, 120
    lines = [line.strip() for document in documents[:400] for line in document.text.splitlines()]
    haystack = [line for line in lines if shortest <= len(line) <= longest]

    def texts(length: int, rng: random.Random) -> Iterator[str]:
        tasks = list(long_context.TASKS)
        while True:
            target = round(math.exp(rng.uniform(math.log(SHORTEST_ITEM), math.log(length - 1))))
            item = long_context.make_item(rng.choice(tasks), rng, haystack, encoder.count, target)
            yield item.prompt + item.completion

    return texts


def _passes(items: list, rng: random.Random) -> Iterator[tuple[int, int]]:
    return passes(len(items), np.random.default_rng(rng.getrandbits(64)))


_TEXTS = {"repository": _repositories, "long_documents": _long_documents, "synthetic": _synthetic}


if __name__ == "__main__":
    run_stage("midtrain_data", run)
