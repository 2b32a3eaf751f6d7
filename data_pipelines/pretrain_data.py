"""Token shards for pre-training: ``python -m data_pipelines.pretrain_data --recipe tiny``.

Documents are drawn by source until the mix's share of the tokens is reached, again from the start where a
source is too small (counted as epochs), shuffled over all sources and joined by ``<|endoftext|>``. A share
of the code is rearranged for fill-in-the-middle. Writes ``tokens.bin``, ``offsets.npy``,
``validation.bin``, ``validation_offsets.npy`` (curated documents that are not in ``tokens.bin``) and
``meta.json``.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from data_pipelines import fill_in_the_middle
from data_pipelines.documents import Document, rank, read_documents
from data_pipelines.mixing import passes, quotas
from data_pipelines.tokens import Encoder, write_meta, write_stream
from pipeline.recipe.model import END_OF_TEXT
from pipeline.stage import Context, run_stage

VALIDATION_SHARE = 0.02  # of the tokens, beside them
VALIDATION_DOCUMENT = 1024  # tokens of one document at most, so that there are many
DOCUMENTS_AT_ONCE = 32


def run(context: Context) -> dict[str, float]:
    """Draw, encode and shuffle each source's share."""
    encoder = Encoder(context.inputs["tokenizer"])
    section = context.section
    documents = _by_source(context.inputs["curate"] / "documents", set(section.mix))
    wanted = quotas(section.mix, section.tokens, set(documents))
    validation_wanted = quotas(section.mix, round(VALIDATION_SHARE * section.tokens), set(documents))
    training, validation, facts = [], [], {}
    for number, (source, quota) in enumerate(wanted.items()):
        rng = np.random.default_rng([context.recipe.data_seed, number])
        pool = sorted(documents[source], key=lambda d: rank(context.recipe.data_seed, "pretrain", d.id))
        held, pool = _set_apart(pool, validation_wanted[source], encoder)
        validation += held
        drawn, fact = draw(pool, quota, section.fill_in_the_middle, rng, encoder)
        training += drawn
        facts[source] = {**fact, "validation_tokens": sum(map(len, held))}
        context.progress.update(
            "encode", sum(map(len, training)) / 1e6, section.tokens / 1e6, "Mtokens", source
        )
    order = np.random.default_rng([context.recipe.data_seed, len(wanted)]).permutation(len(training))
    training = [training[index] for index in order]
    write_stream(context.out, "tokens", training)
    write_stream(context.out, "validation", validation)
    meta = {
        "dtype": encoder.dtype.str, "tokens": sum(map(len, training)), "documents": len(training),
        "end": END_OF_TEXT, "sources": facts, "vocab_size": encoder.vocab_size,
        "tokenizer": context.input_records["tokenizer"]["content"],
        "validation": {
            "file": "validation.bin", "offsets": "validation_offsets.npy",
            "tokens": sum(map(len, validation)), "documents": len(validation),
            "from": "curated documents that are not in tokens.bin",
        },
    }  # fmt: skip
    write_meta(context.out, meta)
    context.facts["tokens"] = meta["tokens"]
    return {
        "data/tokens": meta["tokens"], "data/documents": meta["documents"],
        "data/validation_tokens": meta["validation"]["tokens"],
        **{f"data/epochs/{source}": fact["epochs"] for source, fact in facts.items()},
    }  # fmt: skip


def _by_source(folder: Path, wanted: set[str]) -> dict[str, list[Document]]:
    documents: dict[str, list[Document]] = {}
    for document in read_documents(folder):
        if document.source in wanted:
            documents.setdefault(document.source, []).append(document)
    return documents


def _set_apart(
    pool: list[Document], tokens: int, encoder: Encoder
) -> tuple[list[np.ndarray], list[Document]]:
    """The first documents as validation, cut to ``tokens`` and at most a fifth of them; and the rest."""
    held: list[np.ndarray] = []
    for ids in encoder.encode(document.text for document in pool[: len(pool) // 5]):
        if tokens <= 0:
            break
        held.append(fill_in_the_middle.join([ids], encoder)[: min(tokens, VALIDATION_DOCUMENT)])
        tokens -= len(held[-1])
    return held, pool[len(held) :]


def draw(
    pool: list[Document], quota: int, fill_share: float, rng: np.random.Generator, encoder: Encoder
) -> tuple[list[np.ndarray], dict]:
    """Encoded documents of exactly ``quota`` tokens in all (the last one is cut), and what was drawn."""
    drawn: list[np.ndarray] = []
    tokens = filled = 0
    characters = 0.0
    for document, pieces in _in_pieces(pool, fill_share, rng, encoder):
        if tokens >= quota:
            break
        ids = fill_in_the_middle.join(pieces, encoder)
        drawn.append(ids[: quota - tokens])
        tokens += len(drawn[-1])
        filled += len(pieces) == 3
        characters += len(document.text) * len(drawn[-1]) / len(ids)
    epochs = characters / sum(len(document.text) for document in pool)
    return drawn, {
        "tokens": tokens, "documents": len(drawn), "epochs": round(epochs, 4), "fill_in_the_middle": filled,
    }  # fmt: skip


def _in_pieces(
    pool: list[Document], fill_share: float, rng: np.random.Generator, encoder: Encoder
) -> Iterator[tuple[Document, list[np.ndarray]]]:
    """Documents of the pool without end, encoded, those for fill-in-the-middle in three pieces."""
    order = passes(len(pool), rng)
    while True:
        batch = [pool[index] for _, index in islice(order, DOCUMENTS_AT_ONCE)]
        cuts = [
            fill_in_the_middle.cut(document.text, rng)
            if document.kind == "code" and rng.random() < fill_share
            else (document.text,)
            for document in batch
        ]
        encoded = encoder.encode(piece for pieces in cuts for piece in pieces)
        for document, pieces in zip(batch, cuts, strict=True):
            yield document, list(islice(encoded, len(pieces)))


if __name__ == "__main__":
    run_stage("pretrain_data", run)
