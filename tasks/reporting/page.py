"""Everything that the page and its Markdown twin show, as plain values for the templates."""

import time
from pathlib import Path
from typing import Any

import jinja2

from environments.catalog import environments, family_names
from environments.interface import MODES
from evals.ngram import BASELINES
from tasks.reporting import formats
from tasks.reporting.agents import agent_tasks
from tasks.reporting.conduct import conduct
from tasks.reporting.contamination import contamination
from tasks.reporting.corpus import corpus, funnel
from tasks.reporting.cost import costs
from tasks.reporting.facts import Facts
from tasks.reporting.gains import WORDS, difference, gains
from tasks.reporting.highlights import stage_numbers, tiles
from tasks.reporting.plots import charts
from tasks.reporting.provenance import versions
from tasks.reporting.quantization import quantization
from tasks.reporting.reinforcement import learning
from tasks.reporting.samples import chats, completions, lessons, surprises
from tasks.reporting.scores import ARENA, Scores
from tasks.reporting.scripted import scripts
from tasks.reporting.timeline import ROW, gutter, timeline
from tasks.reporting.trajectories import Viewer, script
from tasks.training.stages import BASE_STAGES, CHECKPOINT_STAGES, RL_STAGES

FOLDER = Path(__file__).parent
CHATS_PER_MODE = 2


def view(facts: Facts, scores: Scores, title: str) -> dict[str, Any]:
    """The templates' context. Parts whose facts are missing are empty; ``missing`` says which."""
    samples = facts.lines("evaluate", "samples.jsonl")
    last = scores.checkpoints[-1] if scores.checkpoints else ""
    with_indexer = [n for n in scores.checkpoints if scores.get(n, "sparse_attention", "gap/sparse")]
    # Fine-tuned on chats alone, a small model forgets how documents go on: attention is shown before that.
    sparse = next(
        (n for n in reversed(with_indexer) if n in BASE_STAGES), with_indexer[-1] if with_indexer else last
    )
    return {
        "title": title,
        "recipe": facts.recipe,
        "made": time.strftime("%d %B %Y, %H:%M UTC", time.gmtime()),
        "tiles": tiles(facts, scores),
        "rows": timeline(facts, stage_numbers(facts, scores)),
        "gutter": gutter(facts),
        "row_height": ROW,
        "sources": corpus(facts),
        "funnel": funnel(facts),
        "agents": agent_tasks(facts),
        "contamination": contamination(facts),
        "training": [charts(facts, name) for name in _gradient_stages(facts)],
        "learning": [learning(facts, name) for name in finished(facts)],
        "scores": scores,
        "bits": _bits(scores),
        "protocol": scores.protocol_hash(last),
        "conduct": conduct(scores),
        "scripts": scripts(scores),
        "arena": scores.forest([(name, name, ARENA, "rating") for name in scores.checkpoints]),
        "gains": gains(scores),
        "quantization": quantization(facts, scores),
        "attention": _attention(scores, sparse),
        "families": scores.families(last),
        "unseen": family_names(environments(), evaluation_only=True),
        "retrieval": scores.retrieval(sparse),
        "ruler": scores.retrieval(sparse, "ruler"),
        "retrieval_of": sparse,
        "modes": MODES,
        "baselines": BASELINES,
        "last": last,
        "chats": chats(samples, last, CHATS_PER_MODE),
        "lessons": lessons(facts),
        "surprises": surprises(samples, _base(scores)),
        "surprises_of": _base(scores),
        "completions": completions(samples, sparse),
        "costs": costs(facts),
        "total_seconds": sum(s.record["seconds"] for s in facts.stages.values() if s.record),
        "versions": versions(facts),
        "missing": facts.missing,
    }  # fmt: skip


def finished(facts: Facts) -> list[str]:
    """The stages of reinforcement learning that the recipe ran."""
    return [name for name in RL_STAGES if name in facts.stages and facts.stages[name].record]


def _gradient_stages(facts: Facts) -> list[str]:
    """The stages that learn from given tokens."""
    return [name for name in CHECKPOINT_STAGES if name in facts.stages and name not in RL_STAGES]


def viewer_values(found: Viewer, recipe: str) -> dict[str, Any]:
    """The context of ``trajectories.html.jinja``."""
    program, program_hash = script()
    own = (FOLDER / "trajectories.css").read_text(encoding="utf-8")
    return {
        "recipe": recipe, "own_style": own, "script": program, "script_hash": program_hash,
        "data": found.data(recipe),
    }  # fmt: skip


def render(template: str, values: dict[str, Any]) -> str:
    """``page.html.jinja`` or ``page.md.jinja`` with the values of ``view``, or the viewer with its own."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=template.endswith(".html.jinja"),
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    shapes = ("duration", "count", "megabytes", "number", "operations", "commit", "score", "marked")
    environment.filters |= {name: getattr(formats, name) for name in shapes}
    environment.globals |= {
        "interval": formats.interval, "difference": difference, "verdicts": WORDS,
        "style": (FOLDER / "style.css").read_text(),
    }  # fmt: skip
    return environment.get_template(template).render(values)


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
    names = [name for name in scores.checkpoints if name in BASE_STAGES]
    return names[-1] if names else ""
