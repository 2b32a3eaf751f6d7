"""Scores for the page: the table by checkpoint, forests of intervals, families, retrieval."""

import re
from dataclasses import dataclass, field
from typing import Any

from environments.interface import MODES
from evals.ngram import BASELINES
from pipeline.artifacts import digest_of


@dataclass(frozen=True)
class Line:
    """One score of the table: where it stands, its label, how it is written, which way is better."""

    suite: str
    name: str
    label: str
    kind: str  # see formats.score
    lower_is_better: bool = False
    control: bool = False  # stands beside DSA; no stage is meant to change it


LINES = (
    Line("bits_per_byte", "all", "Bits per byte, held-out documents", "bits", True),
    Line("answers", "per_token", "Bits per token of right answers", "bits", True),
    Line("sparse_attention", "bpb/dense", "Bits per byte at the long length, dense", "bits", True),
    Line("sparse_attention", "gap/sparse", "DSA, loss above dense", "gap", True),
    Line("sparse_attention", "gap/window", "Window of the same budget, loss above dense", "gap", True, True),
    Line(
        "sparse_attention",
        "gap/random",
        "Random keys of the same budget, loss above dense",
        "gap",
        True,
        True,
    ),
    Line("sparse_attention", "indexer_kl", "Indexer KL to attention, nats", "nats", True),
    Line("sparse_attention", "topk_recall", "Top-k recall of the indexer", "share"),
    Line("sparse_attention", "window_recall", "Top-k recall of a window", "share", control=True),
    Line("long_context", "dense/all", "Retrieval, dense", "share"),
    Line("long_context", "sparse/all", "Retrieval, DSA", "share"),
    Line("long_context", "window/all", "Retrieval, window", "share"),
    Line("ruler", "dense/all", "RULER's 13 tasks, dense", "share"),
    Line("ruler", "sparse/all", "RULER's 13 tasks, DSA", "share"),
    Line("ruler", "window/all", "RULER's 13 tasks, window", "share"),
    *(Line("environments", f"exact/{mode}", f"Exact match, thinking {mode}", "share") for mode in MODES),
    *(
        Line("environments", f"exact/unseen/{mode}", f"Unseen families, thinking {mode}", "share")
        for mode in MODES
    ),
    *(Line("environments", f"valid/{mode}", f"Valid format, thinking {mode}", "share") for mode in MODES),
    Line("sampled", "mean/all", "Sampled at temperature 1, exact match", "share"),
    Line("sampled", "mean/unseen", "Sampled at temperature 1, unseen families", "share"),
    Line("sampled", "valid/all", "Sampled at temperature 1, valid format", "share"),
    Line("humaneval", "parses", "HumanEval, completions that are Python", "share"),
)
ARENA = "arena"  # its protocol names the contestants, so that ratings compare within one evaluation alone
PASS = re.compile(r"pass(?P<how>[@^])(?P<k>\d+)(/all)?")  # of k samples of a task one is right, or all are


@dataclass
class Scores:
    """The content of ``scores.json``, looked up by checkpoint, suite and name."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    beside_parent: list[dict[str, Any]] = field(default_factory=list)  # of quantised checkpoints
    arena: dict[str, Any] = field(default_factory=dict)
    scripted: list[dict[str, Any]] = field(default_factory=list)  # rows of policies without a model
    left_out: dict[str, str] = field(default_factory=dict)  # suite -> why it could not be run

    @classmethod
    def read(cls, content: dict[str, Any] | None) -> "Scores":
        content = content or {}
        return cls(
            content.get("rows", []), content.get("changes", []), content.get("beside_parent") or [],
            content.get("arena") or {}, content.get("scripted", []), content.get("left_out", {}),
        )  # fmt: skip

    def __post_init__(self) -> None:
        self._by_key = {(row["checkpoint"], row["suite"], row["name"]): row for row in self.rows}

    def get(self, checkpoint: str, suite: str, name: str) -> dict[str, Any] | None:
        return self._by_key.get((checkpoint, suite, name))

    @property
    def checkpoints(self) -> list[str]:
        names = dict.fromkeys(row["checkpoint"] for row in self.rows)
        return [name for name in names if name not in BASELINES]

    def lines(self) -> list[Line]:
        """Those of every evaluation, and what depends on how often a task was sampled; suite by suite."""
        found = dict.fromkeys((row["suite"], row["name"]) for row in self.rows if PASS.fullmatch(row["name"]))
        lines = [*LINES, *(_of_samples(*key) for key in found)]
        order = [*dict.fromkeys(line.suite for line in lines)]
        return sorted(lines, key=lambda line: order.index(line.suite))

    def table(self) -> list[dict[str, Any]]:
        """A row a line, a cell a checkpoint; lines that no checkpoint has are left out."""
        rows = []
        for line in self.lines():
            cells = [self.get(name, line.suite, line.name) for name in self.checkpoints]
            if any(cells):
                rows.append({"line": line, "cells": cells})
        return rows

    def forest(self, lines: list[tuple[str, str, str, str]]) -> dict[str, Any]:
        """(label, checkpoint, suite, name) as dots with whiskers on one scale."""
        found = [(label, self.get(*key)) for label, *key in lines]
        rows = [(label, row) for label, row in found if row]
        if not rows:
            return {"rows": []}
        bounds = [
            value for _, row in rows for value in (row["low"], row["high"], row["value"]) if value is not None
        ]
        span = (max(bounds) - min(bounds)) or 1.0
        start, span = min(bounds) - 0.06 * span, 1.12 * span

        def place(value: float | None) -> float:
            return 0.0 if value is None else max(0.0, min(100.0, 100 * (value - start) / span))

        return {
            "rows": [
                {
                    "label": label, **row, "at": place(row["value"]), "from": place(row["low"]),
                    "to": place(row["high"]) if row["high"] is not None else 100.0,
                }
                for label, row in rows
            ]
        }  # fmt: skip

    def families(self, checkpoint: str) -> list[dict[str, Any]]:
        """Exact match by family and mode, the best known first."""
        prefix = "exact/all/"
        names = [
            row["name"][len(prefix) :]
            for row in self.rows
            if row["checkpoint"] == checkpoint and row["name"].startswith(prefix)
        ]
        rows = [
            {
                "family": name,
                "all": self.get(checkpoint, "environments", prefix + name),
                "modes": [self.get(checkpoint, "environments", f"exact/{mode}/{name}") for mode in MODES],
            }
            for name in names
        ]
        return sorted(rows, key=lambda row: (-row["all"]["value"], row["family"]))

    def retrieval(self, checkpoint: str, suite: str = "long_context") -> list[dict[str, Any]]:
        """Scores of a suite of long texts: a row a length or task, a cell an attention."""
        attentions = ("dense", "sparse", "window")
        names: dict[str, None] = {}
        for row in self.rows:
            if row["checkpoint"] == checkpoint and row["suite"] == suite:
                names.setdefault(row["name"].split("/", 1)[1])
        ordered = sorted(names, key=lambda name: (name == "all", not name.isdigit(), name.zfill(9)))
        return [
            {
                "name": f"{name} tokens" if name.isdigit() else name.replace("_", " "),
                "cells": [self.get(checkpoint, suite, f"{a}/{name}") for a in attentions],
            }
            for name in ordered
        ]

    def protocol_hash(self, checkpoint: str) -> str:
        """One hash of all protocols that a checkpoint was scored under; '' where it was not."""
        found = {
            row["suite"]: row["protocol"]
            for row in self.rows
            if row["checkpoint"] == checkpoint and row["suite"] != ARENA
        }
        return digest_of(found) if found else ""

    def protocols(self) -> list[dict[str, Any]]:
        """Each protocol once, with what was scored under it."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            names = found.setdefault((row["suite"], row["protocol"]), [])
            if row["checkpoint"] not in names:
                names.append(row["checkpoint"])
        return [{"suite": s, "hash": p, "checkpoints": names} for (s, p), names in found.items()]


def _of_samples(suite: str, name: str) -> Line:
    match = PASS.fullmatch(name)
    where = "HumanEval" if suite == "humaneval" else "Sampled at temperature 1"
    how = (
        f"{'one' if match['how'] == '@' else 'all'} of {match['k']} right" if match["k"] != "1" else "pass@1"
    )
    return Line(suite, name, f"{where}, {how}", "share")
