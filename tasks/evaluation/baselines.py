"""N-gram baselines on the documents of bits per byte, fitted on the very windows that pre-training saw."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evals.bits_per_byte import BitsPerByte
from evals.ngram import BASELINES, NGram
from evals.policy import Result
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from tasks.training.batches import StreamBatches, rows_of_step


def fitted_on(record: dict) -> dict:
    """What decides the baselines, from pre-training's record: the stream, and which windows were seen."""
    section = record["sections"]["pretrain"]
    return {
        "stream": record["inputs"]["pretrain_data"],
        "seed": record["seed"],
        "length": section["sequence_length"],
        "rows_per_step": section["global_batch_tokens"] // section["sequence_length"],
        "steps": section["tokens"] // section["global_batch_tokens"],
    }


def seen_windows(pretrain_data: Path, fit: dict) -> np.ndarray:
    """(rows, T + 1) tokens: every window that pre-training was shown, once each."""
    stream = StreamBatches(pretrain_data, fit["length"])
    per_step, steps = fit["rows_per_step"], fit["steps"]
    shown = [rows_of_step(stream.rows, per_step, fit["seed"], step) for step in range(steps)]
    rows = np.unique(np.concatenate(shown))
    positions = rows[:, None] * fit["length"] + np.arange(fit["length"] + 1)
    return np.asarray(stream.stream)[positions]


def score_baselines(
    suite: BitsPerByte, pretrain_data: Path, tokenizer: Tokenizer, fit: dict
) -> dict[str, Result]:
    """Bits per byte of each baseline, on the same tokens of the same documents as the networks."""
    model = NGram.fit(seen_windows(pretrain_data, fit), tokenizer.vocab_size)
    start = tokenizer.ids_by_name[END_OF_TEXT]
    nats_of: dict[str, Callable[[list[int]], np.ndarray]] = {
        "unigram": model.unigram_nats,
        "3-gram": lambda tokens: model.trigram_nats(tokens, start),
    }
    rows = [ids[: suite.max_tokens] for ids in tokenizer.encode_batch([d.text for d in suite.documents])]
    sizes = [float(sum(len(tokenizer.token_bytes(token)) for token in row)) for row in rows]
    results = {}
    for name in BASELINES:
        bits = [float(nats_of[name](row).sum()) / math.log(2) for row in rows]
        results[name] = Result(suite.scores(bits, sizes, [float(len(row)) for row in rows]), [])
    return results
