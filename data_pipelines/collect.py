"""Collect documents from the recipe's sources: ``python -m data_pipelines.collect --recipe tiny``.

Writes ``documents/*.parquet`` (schema in ``documents.py``) and ``sources.json``: what each source gave, under
which licences, from which versions, and what was skipped.
"""

import json
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

from data_pipelines.documents import Document, DocumentWriter
from data_pipelines.sources.files import Notes
from data_pipelines.sources.selection import take
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.recipe.data import Source
from pipeline.stage import Context, run_stage

DOWNLOADS = "runs/downloads"  # shared by all recipes; wheel files may be put there by hand


def run(context: Context) -> dict[str, float]:
    """Take each source's documents in a seeded order, up to its ``max_mb``."""
    downloads = artifacts.root() / DOWNLOADS
    summaries = []
    with DocumentWriter(context.out / "documents") as writer:
        for source in context.section.sources:
            summaries.append(_collect(source, context, downloads, writer))
        (context.out / "sources.json").write_text(
            json.dumps({"sources": summaries}, indent=2, ensure_ascii=False) + "\n"
        )
        context.facts["characters_by_source"] = {item["name"]: item["characters"] for item in summaries}
        skipped = sum(entry["files"] for item in summaries for entry in item["skipped"].values())
        return {
            "data/documents": writer.documents,
            "data/characters": writer.characters,
            "data/skipped": skipped,
        }


def _collect(source: Source, context: Context, downloads: Path, writer: DocumentWriter) -> dict:
    notes, counts = Notes(), Tally()
    module = import_module(f"data_pipelines.sources.{source.kind}")
    for document in take(
        module.files(source, notes, downloads), source.max_mb, context.recipe.data_seed, notes
    ):
        writer.add(document)
        counts.add(document)
        context.progress.update(f"read {source.name}", counts.characters / 1e6, source.max_mb, "MB")
    for sentence in notes.sentences(source.name):
        print(f"collect: {sentence}", file=sys.stderr)
    if not counts.documents:
        reasons = "; ".join(notes.sentences(source.name)) or "it offers none"
        raise UserError(f"source {source.name} gave no document ({reasons})")
    versions = {name: notes.versions[name] for name in sorted(notes.versions)}
    return {
        "name": source.name, "kind": source.kind, **counts.summary(), "versions": versions,
        "files_sha256": notes.hashes, "skipped": notes.skipped,
    }  # fmt: skip


class Tally:
    """Documents and characters, also by licence, language and kind."""

    def __init__(self) -> None:
        self.documents = self.characters = 0
        self.licences: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.packages: set[str] = set()

    def add(self, document: Document) -> None:
        size = len(document.text)
        self.documents += 1
        self.characters += size
        self.licences[document.licence] += size
        self.languages[document.language] += size
        self.kinds[document.kind] += size
        self.packages.add(document.package)

    def summary(self) -> dict:
        return {
            "documents": self.documents, "characters": self.characters, "packages": len(self.packages),
            "characters_by_licence": dict(self.licences.most_common()),
            "characters_by_language": dict(self.languages.most_common()),
            "characters_by_kind": dict(self.kinds.most_common()),
        }  # fmt: skip


if __name__ == "__main__":
    run_stage("collect", run)
