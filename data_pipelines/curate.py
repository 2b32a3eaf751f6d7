"""Curate documents: ``python -m data_pipelines.curate --recipe tiny``.

Quality rules, exact duplicates, overlap with the evaluation sets, near-duplicates within and across
sources, in that order. Writes ``documents/*.parquet`` and ``funnel.json``: kept and dropped by reason and
source, with samples of what was dropped.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from data_pipelines import decontamination
from data_pipelines.decontamination import Index
from data_pipelines.documents import Document, DocumentWriter, read_documents
from data_pipelines.duplicates import NearDuplicates, Sketcher
from data_pipelines.examination import Finding, examine_all
from data_pipelines.ngrams import word_hashes
from pipeline.errors import UserError
from pipeline.recipe.data import CurateSection
from pipeline.stage import Context, run_stage

SAMPLES = 6  # shown a reason
EXCERPT = 300  # characters
KEPT = "kept"


def run(context: Context) -> dict[str, float]:
    """Look at every document by itself, decide over all of them, write those that stay."""
    collected = context.inputs["collect"] / "documents"
    eval_sets = context.inputs["eval_sets"]
    index = Index(np.load(eval_sets / "ngrams.npy"), np.load(eval_sets / "ngrams_items.npy"))
    total = context.input_records["collect"]["metrics"]["data/documents"]
    findings = []
    for finding in examine_all(collected, index, context.section):
        findings.append(finding)
        context.progress.update("examine", len(findings), total, "documents")
    heldout = list(read_documents(eval_sets / "heldout.parquet"))
    verdicts = decide(findings, heldout, index, context.section)
    funnel = _write(collected, verdicts, context.out)
    print(table(funnel["rows"]))
    kept = sum(row["documents"] for row in funnel["rows"] if row["reason"] == KEPT)
    characters = sum(row["characters"] for row in funnel["rows"] if row["reason"] == KEPT)
    if not kept:
        raise UserError(
            "curate dropped every document, for the reasons above: relax the curate section or collect more"
        )
    return {
        "curate/kept_documents": kept, "curate/kept_characters": characters,
        "curate/kept_share": characters / sum(row["characters"] for row in funnel["rows"]),
    }  # fmt: skip


def decide(
    findings: list[Finding], heldout: list[Document], index: Index, section: CurateSection
) -> list[tuple[str, str]]:
    """(reason, detail) for each finding; the reason is "kept" for those that stay.

    Earlier documents win over later ones, held-out documents over all.
    """
    sketcher = Sketcher(section.minhash_permutations)
    near = NearDuplicates(section.minhash_permutations, section.minhash_threshold)
    for document in heldout:
        label = _label(f"held out: {document.path}", document.id)
        near.add(label, sketcher.sketch(word_hashes(document.text)))
    heldout_ids = {document.id for document in heldout}
    rare = decontamination.rare_places([f.overlap for f in findings if f.overlap], len(index.heldout))
    seen: dict[str, str] = {}
    return [_decide_one(finding, heldout_ids, rare, seen, near) for finding in findings]


def _decide_one(
    finding: Finding, heldout_ids: set[str], rare: np.ndarray, seen: dict[str, str], near: NearDuplicates
) -> tuple[str, str]:
    if finding.quality is not None:
        return f"quality: {finding.quality}", ""
    if finding.id in heldout_ids:
        return "held out for evaluation", ""
    if finding.id in seen:
        return "exact duplicate", seen[finding.id]
    contaminated = decontamination.reason_to_drop(finding.overlap, rare)
    if contaminated:
        return contaminated, ""
    match = near.find(finding.sketch)
    if match is not None:
        name, similarity = match
        reason = (
            "near-duplicate of a held-out document" if name.startswith("held out: ") else "near-duplicate"
        )
        return reason, f"{similarity:.2f} like {name}"
    name = _label(f"{finding.source}/{finding.path}", finding.id)
    seen[finding.id] = name
    near.add(name, finding.sketch)
    return KEPT, ""


def _label(path: str, document_id: str) -> str:
    """A name of its own for each document: the records of one file share its path."""
    return f"{path} ({document_id[:8]})"


def _write(folder: Path, verdicts: list[tuple[str, str]], out: Path) -> dict:
    """Write the kept documents, and count and sample the others."""
    documents, characters = Counter(), Counter()
    samples: dict[str, list[dict]] = defaultdict(list)
    with DocumentWriter(out / "documents") as writer:
        for document, (reason, detail) in zip(read_documents(folder), verdicts, strict=True):
            documents[reason, document.source] += 1
            characters[reason, document.source] += len(document.text)
            if reason == KEPT:
                writer.add(document)
            elif len(samples[reason]) < SAMPLES:
                samples[reason].append({
                    "reason": reason, "source": document.source, "path": document.path, "detail": detail,
                    "excerpt": document.text[:EXCERPT],
                })  # fmt: skip
    order = sorted(documents, key=lambda key: (key[0] != KEPT, -characters[key], key))
    rows = [
        {
            "reason": reason,
            "source": source,
            "documents": documents[reason, source],
            "characters": characters[reason, source],
        }
        for reason, source in order
    ]
    funnel = {"rows": rows, "samples": [sample for reason in sorted(samples) for sample in samples[reason]]}
    (out / "funnel.json").write_text(json.dumps(funnel, indent=2, ensure_ascii=False) + "\n")
    return funnel


def table(rows: list[dict]) -> str:
    """The funnel as text: a line a reason and source."""
    total = sum(row["characters"] for row in rows)
    lines = [f"{'reason':40} {'source':16} {'documents':>9} {'characters':>12} {'share':>6}"]
    for row in rows:
        share = row["characters"] / total
        lines.append(
            f"{row['reason']:40} {row['source']:16} {row['documents']:9} {row['characters']:12} {share:6.1%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run_stage("curate", run)
