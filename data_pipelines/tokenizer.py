"""Fit the tokenizer: ``python -m data_pipelines.tokenizer --recipe tiny``.

Byte-level BPE; every digit is a token of its own, so that numbers have one form. GLM's special tokens
follow the ordinary ones. Writes ``tokenizer.json`` and ``tokenizer_config.json``, which transformers'
AutoTokenizer loads.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from data_pipelines.documents import Document, rank, read_documents
from pipeline.errors import UserError
from pipeline.recipe.model import SPECIAL_TOKENS, TOKENIZER_CONFIG
from pipeline.stage import Context, run_stage

# GLM-4.5's way to cut text into words (its tokenizer.json), with single digits instead of groups of three.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MEASURED_DOCUMENTS = 20  # a source, for bytes a token


def run(context: Context) -> dict[str, float]:
    """Learn the merges from a seeded sample of the curated documents."""
    documents = context.inputs["curate"] / "documents"
    tokenizer = new_tokenizer()
    sample = _sample(documents, context.section.train_mb * 1e6, context.recipe.data_seed)
    train(tokenizer, _texts(documents, sample, context), context.section.vocab_size)
    tokenizer.save(str(context.out / "tokenizer.json"))
    (context.out / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n")
    context.facts["train_documents"] = len(sample)
    return {"tokenizer/vocabulary": tokenizer.get_vocab_size(), **_compression(tokenizer, documents, sample)}


def new_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer that knows no merges yet."""
    tokenizer = Tokenizer(BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(WORDS), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def train(tokenizer: Tokenizer, texts: Iterator[str], vocab_size: int) -> None:
    """Learn merges until ordinary and special tokens together are ``vocab_size``.

    Raises ``UserError`` when there is too little text for so many.
    """
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    size = tokenizer.get_vocab_size()
    if size != vocab_size:
        raise UserError(
            f"the documents yield only {size} tokens and tokenizer.vocab_size asks for {vocab_size}: collect "
            "more text or lower it (model.vocab_size too)"
        )


def _sample(documents: Path, characters: float, seed: int) -> set[str]:
    """Ids of documents in the order of their hash, up to that many characters."""
    sizes = [
        (rank(seed, "tokenizer", document.id), document.id, len(document.text))
        for document in read_documents(documents)
    ]
    chosen: set[str] = set()
    for _, name, size in sorted(sizes):
        if characters <= 0:
            break
        chosen.add(name)
        characters -= size
    return chosen


def _texts(documents: Path, sample: set[str], context: Context) -> Iterator[str]:
    for done, document in enumerate(_chosen(documents, sample), 1):
        yield document.text
        context.progress.update("read", done, len(sample), "documents")


def _chosen(documents: Path, sample: set[str]) -> Iterator[Document]:
    return (document for document in read_documents(documents) if document.id in sample)


def _compression(tokenizer: Tokenizer, documents: Path, sample: set[str]) -> dict[str, float]:
    """Bytes a token by source, on documents that the merges were not learned from if there are any."""
    seen: dict[str, list[str]] = {}
    unseen: dict[str, list[str]] = {}
    for document in read_documents(documents):
        group = (seen if document.id in sample else unseen).setdefault(document.source, [])
        if len(group) < MEASURED_DOCUMENTS:
            group.append(document.text)
    return {
        f"tokenizer/bytes_per_token/{source}": _bytes_per_token(tokenizer, group)
        for source, group in sorted((seen | unseen).items())
    }


def _bytes_per_token(tokenizer: Tokenizer, texts: list[str]) -> float:
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    return sum(len(text.encode()) for text in texts) / tokens


if __name__ == "__main__":
    run_stage("tokenizer", run)
