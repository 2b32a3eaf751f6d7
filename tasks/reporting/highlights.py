"""The numbers that a reader takes away: the tiles at the top, and the most telling number of each stage."""

from collections.abc import Iterator

from pipeline.recipe.model import ModelSection
from tasks.reporting import formats
from tasks.reporting.facts import Facts
from tasks.reporting.scores import Scores
from tasks.training.stages import CHECKPOINT_STAGES

# The most telling number of a stage: the first of these that it has; behind a last "/" stands any name.
NUMBERS = (
    ("data/tokens", "{:,.0f} tokens"),
    ("data/documents", "{:,.0f} documents"),
    ("curate/kept_share", "{:.0%} of the text kept"),
    ("eval/tasks", "{:,.0f} held-out tasks"),
    ("tokenizer/vocabulary", "{:,.0f} tokens known"),
    ("chats", "{:,.0f} chats"),
    ("tasks/kept", "{:,.0f} tasks kept"),
    ("search/tasks", "{:,.0f} questions kept"),
    ("tasks/total", "{:,.0f} tasks"),
    ("reward/mean", "reward {:.3f}"),
    ("perplexity_chat_change/", "{:+.2%} perplexity on chats"),
    ("val/bpb", "{:.3f} bits per byte of validation {of}"),
    ("val/loss", "loss {:.3f} on validation {of}"),
)
# What a training stage keeps out of its own data for validation: numbers of unlike texts do not compare.
VALIDATION = {"pretrain": "documents", "sft": "chats"}


def tiles(facts: Facts, scores: Scores) -> list[dict[str, str]]:
    """Label, value and note of each tile; a number stands only where it was measured."""
    return [*_size(facts), *_tokens(facts), *_bits_per_byte(scores), *_sparse(scores), *_answers(scores)]


def _tile(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def _size(facts: Facts) -> Iterator[dict[str, str]]:
    record = facts.stages["pretrain"].record if "pretrain" in facts.stages else None
    if record is not None:
        sizes = ModelSection(**record["sections"]["model"]).config().parameter_counts()
        note = f"{formats.count(sizes['active'])} active a token"
        yield _tile("Parameters", formats.count(sizes["total"]), note)


def _tokens(facts: Facts) -> Iterator[dict[str, str]]:
    records = {name: stage.record for name, stage in facts.stages.items() if stage.record}
    trained = [records[name]["facts"].get("tokens", 0) for name in CHECKPOINT_STAGES if name in records]
    if trained:
        seconds = sum(record["seconds"] for record in records.values())
        note = f"all stages in {formats.duration(seconds)}"
        yield _tile("Tokens trained", formats.count(sum(trained)), note)


def _bits_per_byte(scores: Scores) -> Iterator[dict[str, str]]:
    base = scores.get("pretrain", "bits_per_byte", "all")
    gram = scores.get("3-gram", "bits_per_byte", "all")
    if base:
        note = f"3-gram {gram['value']:.3f}" if gram else "pre-training"
        yield _tile("Bits per byte", f"{base['value']:.3f}", note)


def _sparse(scores: Scores) -> Iterator[dict[str, str]]:
    gap = scores.get("dsa_adapt", "sparse_attention", "gap/sparse")
    random = scores.get("dsa_adapt", "sparse_attention", "gap/random")
    if gap:
        note = f"random keys {formats.score(random['value'], 'gap')}" if random else ""
        yield _tile("DSA above dense", formats.score(gap["value"], "gap"), note)


def _answers(scores: Scores) -> Iterator[dict[str, str]]:
    last = scores.checkpoints[-1] if scores.checkpoints else ""
    for name, label in (("exact/interleaved", "Exact match"), ("valid/interleaved", "Valid format")):
        row = scores.get(last, "environments", name)
        if row:
            note = f"{formats.interval(row['low'], row['high'], 'share')} %, n {row['n']}"
            yield _tile(label, formats.score(row["value"], "share"), note)


def stage_numbers(facts: Facts, scores: Scores) -> dict[str, str]:
    """The most telling number of each stage, where it has one."""
    numbers = {}
    for name, stage in facts.stages.items():
        m = stage.metrics
        if name == "dsa_warmup" and "dsa/indexer_kl" in m:
            numbers[name] = f"indexer KL {m['dsa/indexer_kl']:.3f}"
            continue
        found = next(
            (
                shape.format(value, of=VALIDATION.get(name, "sequences"))
                for key, shape in NUMBERS
                for measured, value in m.items()
                if measured == key or (key.endswith("/") and measured.startswith(key))
            ),
            None,
        )
        if found:
            numbers[name] = found
    if scores.rows:
        numbers["evaluate"] = f"{len(scores.rows)} scores"
    return numbers
