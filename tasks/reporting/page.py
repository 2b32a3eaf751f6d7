"""Everything that the page and its Markdown twin show, as plain values for the templates."""

import json
import time
from pathlib import Path
from typing import Any

import jinja2

from environments.catalog import environments, family_names
from model.chat.tokenizer import Tokenizer
from model.config import ModelConfig
from pipeline.recipe.model import ModelSection
from tasks.evaluation.policy import colour
from tasks.reporting import formats
from tasks.reporting.data import corpus, funnel
from tasks.reporting.facts import Facts
from tasks.reporting.runs import cost, curves, versions
from tasks.reporting.samples import chats, completions, surprises, turns
from tasks.reporting.scores import BASELINES, MODES, Scores
from tasks.reporting.timeline import ROW, gutter, reduced_edges, timeline

FOLDER = Path(__file__).parent
CHECKPOINTS = ("pretrain", "midtrain", "dsa_warmup", "dsa_adapt", "sft")
CHATS_PER_MODE = 2
# The most telling number of a stage: the first of these that it has.
KEYS = (
    ("data/tokens", "{:,.0f} tokens"),
    ("data/documents", "{:,.0f} documents"),
    ("curate/kept_share", "{:.0%} of the text kept"),
    ("eval/tasks", "{:,.0f} held-out tasks"),
    ("tokenizer/vocabulary", "{:,.0f} tokens known"),
    ("chats", "{:,.0f} chats"),
    ("val/bpb", "{:.3f} bits per byte"),
    ("val/loss", "loss {:.3f}"),
)


def view(facts: Facts, title: str) -> dict[str, Any]:
    """The templates' context. Parts whose facts are missing are empty; ``missing`` says which."""
    scores = Scores.read(facts.json("evaluate", "scores.json"))
    samples = facts.lines("evaluate", "samples.jsonl")
    last = scores.checkpoints[-1] if scores.checkpoints else ""
    with_indexer = [n for n in scores.checkpoints if scores.get(n, "sparse_attention", "gap/sparse")]
    # Fine-tuned on chats alone, a small model forgets how documents go on: attention is shown before that.
    sparse = next(
        (n for n in reversed(with_indexer) if n != "sft"), with_indexer[-1] if with_indexer else last
    )
    return {
        "title": title,
        "recipe": facts.recipe,
        "made": time.strftime("%d %B %Y, %H:%M UTC", time.gmtime()),
        "tiles": _tiles(facts, scores),
        "rows": timeline(facts, _keys(facts, scores)),
        "gutter": _gutter(facts),
        "row_height": ROW,
        "sources": corpus(facts),
        "funnel": funnel(facts),
        "training": [curves(facts, name) for name in CHECKPOINTS if name in facts.stages],
        "scores": scores,
        "bits": _bits(scores),
        "attention": _attention(scores, sparse),
        "families": scores.families(last),
        "unseen": family_names(environments(), evaluation_only=True),
        "retrieval": scores.retrieval(sparse),
        "retrieval_of": sparse,
        "modes": MODES,
        "last": last,
        "chats": chats(samples, last, CHATS_PER_MODE),
        "lessons": _lessons(facts),
        "surprises": surprises(samples, _base(scores)),
        "surprises_of": _base(scores),
        "completions": completions(samples, sparse),
        "costs": [cost(facts, name) for name in facts.stages if facts.stages[name].record],
        "total_seconds": sum(s.record["seconds"] for s in facts.stages.values() if s.record),
        "versions": versions(facts),
        "missing": facts.missing,
    }  # fmt: skip


def render(template: str, values: dict[str, Any]) -> str:
    """``page.html.jinja`` or ``page.md.jinja`` with the values of ``view``."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=template.endswith(".html.jinja"),
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "duration": formats.duration, "count": formats.count, "megabytes": formats.megabytes,
        "score": formats.score, "marked": formats.marked,
    }  # fmt: skip
    environment.globals |= {"interval": formats.interval, "style": (FOLDER / "style.css").read_text()}
    return environment.get_template(template).render(values)


def _tiles(facts: Facts, scores: Scores) -> list[dict[str, str]]:
    """The numbers that a reader takes away; each stands only where it was measured."""
    tiles = []
    config = _model(facts)
    if config is not None:
        sizes = config.parameter_counts()
        tiles.append(
            _tile(
                "Parameters",
                formats.count(sizes["total"]),
                f"{formats.count(sizes['active'])} active a token",
            )
        )
    trained = [
        s.record["facts"].get("tokens", 0) for n, s in facts.stages.items() if n in CHECKPOINTS and s.record
    ]
    if trained:
        seconds = sum(s.record["seconds"] for s in facts.stages.values() if s.record)
        tiles.append(
            _tile("Tokens trained", formats.count(sum(trained)), f"all stages in {formats.duration(seconds)}")
        )
    base = scores.get("pretrain", "bits_per_byte", "all")
    gram = scores.get("3-gram", "bits_per_byte", "all")
    if base:
        tiles.append(
            _tile(
                "Bits per byte",
                f"{base['value']:.3f}",
                f"3-gram {gram['value']:.3f}" if gram else "pre-training",
            )
        )
    gap = scores.get("dsa_adapt", "sparse_attention", "gap/sparse")
    rand = scores.get("dsa_adapt", "sparse_attention", "gap/random")
    if gap:
        note = f"random keys {formats.score(rand['value'], 'gap')}" if rand else ""
        tiles.append(_tile("DSA above dense", formats.score(gap["value"], "gap"), note))
    last = scores.checkpoints[-1] if scores.checkpoints else ""
    for name, label in (("exact/interleaved", "Exact match"), ("valid/interleaved", "Valid format")):
        row = scores.get(last, "environments", name)
        if row:
            note = f"{formats.interval(row['low'], row['high'], 'share')} %, n {row['n']}"
            tiles.append(_tile(label, formats.score(row["value"], "share"), note))
    return tiles


def _tile(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def _model(facts: Facts) -> ModelConfig | None:
    record = facts.stages["pretrain"].record if "pretrain" in facts.stages else None
    if record is None:
        return None
    return ModelSection(**record["sections"]["model"]).config()


def _gutter(facts: Facts) -> str:
    names = [*facts.stages, "report"]
    inputs = {name: stage.inputs for name, stage in facts.stages.items()} | {"report": tuple(facts.stages)}
    done = {name for name, stage in facts.stages.items() if stage.record} | {"report"}
    return gutter(names, reduced_edges(inputs), done)


def _keys(facts: Facts, scores: Scores) -> dict[str, str]:
    """The most telling number of each stage, where it has one."""
    keys = {}
    for name, stage in facts.stages.items():
        m = stage.metrics
        if name == "dsa_warmup" and "dsa/indexer_kl" in m:
            keys[name] = f"indexer KL {m['dsa/indexer_kl']:.3f}"
            continue
        found = next((shape.format(m[key]) for key, shape in KEYS if key in m), None)
        if found:
            keys[name] = found
    if scores.rows:
        keys["evaluate"] = f"{len(scores.rows)} scores"
    return keys


def _bits(scores: Scores) -> dict[str, Any]:
    names = [*BASELINES, *scores.checkpoints]
    return scores.forest([(name, name, "bits_per_byte", "all") for name in names])


def _attention(scores: Scores, checkpoint: str) -> dict[str, Any]:
    """Losses above dense attention, paired by document: losses themselves differ more between documents."""
    labels = {"sparse": "DSA", "window": "last keys", "random": "random keys"}
    lines = [(label, checkpoint, "sparse_attention", f"gap/{key}") for key, label in labels.items()]
    return {"checkpoint": checkpoint, **scores.forest(lines)}


def _base(scores: Scores) -> str:
    """The last checkpoint before fine-tuning: the one that is best at documents."""
    names = [name for name in scores.checkpoints if name != "sft"]
    return names[-1] if names else ""


def _lessons(facts: Facts) -> list[dict[str, Any]]:
    """One chat a mode of what fine-tuning trains on, and one with a wrong turn that is masked."""
    path = facts.folders.get("tokenizer")
    record = facts.stages["sft_data"].record if "sft_data" in facts.stages else None
    if record is None or path is None or not (path / "tokenizer.json").exists():
        return []
    tokenizer = Tokenizer.load(path)
    chosen: dict[str, dict] = {}
    with open(facts.folders["sft_data"] / "chats.jsonl", encoding="utf-8") as file:
        for number, line in enumerate(file):
            chat = json.loads(line)
            wrong = any(message.get("train") is False for message in chat["messages"])
            rich = len(chat["messages"]) > 2
            if rich or wrong:
                chosen.setdefault(
                    "a wrong turn, kept but masked" if wrong else f"thinking {chat['mode']}", chat
                )
            if number > 3000 or len(chosen) > 3:
                break
    return [
        {
            "label": label, "family": f"{chat['environment']}/{chat['family']}",
            "turns": turns(colour(tokenizer, chat["messages"], chat.get("tools"), chat["mode"])),
        }
        for label, chat in chosen.items()
    ]  # fmt: skip
