"""Two evaluated checkpoints side by side: ``glm5 report --compare A B``.

A and B are recipes, ``recipe/stage``, or folders: a recipe's artifacts, its evaluation, or a checkpoint's
artifact. A recipe stands for the last checkpoint that it scored. Only scores of one protocol are compared,
on the same items and with paired intervals; unlike protocols are refused.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.policy import Result, Score
from pipeline import artifacts
from pipeline.errors import UserError, run_command
from tasks.evaluation.changes import changes
from tasks.reporting import formats
from tasks.reporting.gains import difference, verdict
from tasks.reporting.scores import Line, Scores

STAGE = "evaluate"
FAMILY = "exact/all/"
FAMILY_LINE = Line("environments", FAMILY, "", "share")
SHOWN = 12  # characters of a hash
TEXTS, NUMBERS = ("checkpoint", "suite", "name", "protocol"), ("value", "low", "high", "n")  # of a row
AGAIN = "holds no scores of {}: run stage evaluate again with --force"


@dataclass(frozen=True)
class Side:
    """One checkpoint of an evaluation, with the values of each item."""

    title: str
    checkpoint: str
    scores: Scores
    items: dict[str, dict[str, Any]]  # suite -> score -> what the items gave, and "unjudged"

    def rows(self) -> list[dict[str, Any]]:
        """Without the arena: a rating has no items, and stands among the contestants of one evaluation."""
        return [
            r for r in self.scores.rows if r["checkpoint"] == self.checkpoint and r["suite"] in self.items
        ]

    def protocols(self) -> dict[str, str]:
        return {row["suite"]: row["protocol"] for row in self.rows()}

    def results(self, suites: list[str], name: str) -> dict[tuple[str, str], Result]:
        found: dict[tuple[str, str], list[Score]] = {}
        for row in self.rows():
            if row["suite"] in suites:
                scores = found.setdefault((name, row["suite"]), [])
                scores += [] if row["value"] is None else [self._score(row)]  # None as it was NaN
        return {key: Result(scores, [], self._failed(key[1])) for key, scores in found.items()}

    def _failed(self, suite: str) -> list[dict[str, Any]]:
        """Attempts at what was not judged; none where an older evaluation did not keep them."""
        kept = self.items[suite].get("unjudged", [])
        if not isinstance(kept, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in kept):
            raise UserError(f"items.json of {self.title} {AGAIN.format(suite)}")
        return [{"task": task, "mode": mode, "reward": None} for task, mode in kept]

    def _score(self, row: dict[str, Any]) -> Score:
        kept = self.items[row["suite"]].get(row["name"])
        values = _values(kept)
        if values is None:
            raise UserError(f"items.json of {self.title} {AGAIN.format(row['suite'] + '/' + row['name'])}")
        bounds = [float("nan") if row[key] is None else row[key] for key in ("low", "high")]
        return Score(row["name"], row["value"], *bounds, row["n"], *values, kept["proportion"])


def compare(first: str, second: str) -> str:
    """The table as text. Raises ``UserError`` for what cannot be found or compared."""
    a, b = find(first), find(second)
    suites = comparable(a, b)
    results = {**a.results(suites, "a"), **b.results(suites, "b")}
    protocols = {(side, suite): a.protocols()[suite] for side in ("a", "b") for suite in suites}
    unlike = [s for s in suites if results["a", s].unjudged != results["b", s].unjudged]
    try:
        found = changes(results, protocols, [("a", "b")])
    except ValueError as error:
        raise UserError(f"items.json of {a.title} and of {b.title} do not pair up: {error}") from error
    rows = list(_rows(a, b, found))
    left_out = sorted(set(a.protocols()) ^ set(b.protocols()))
    lines = [
        f"A  {a.title}",
        f"B  {b.title}",
        f"protocol {hash_of(a, suites)[:SHOWN]} of {', '.join(suites)}",
        "",
    ]
    lines += _table([("score", "A", "B", "B - A", "95 % interval, paired", "n", ""), *rows])
    if unlike:
        lines += ["", f"not paired, since environments failed on other items: {', '.join(unlike)}"]
    if left_out:
        lines += ["", f"scored on one side alone: {', '.join(left_out)}"]
    return "\n".join(lines)


def find(name: str) -> Side:
    """What a name or a folder stands for."""
    folder = Path(name)
    if not folder.is_dir() and _may_be_of_a_recipe(name):
        recipe, _, stage = name.removesuffix("/").partition("/")
        folder = artifacts.artifact_dir(recipe, stage) if stage else artifacts.artifact_dir(recipe, "")
    evaluation = next(
        (
            place
            for place in (folder, folder / STAGE, folder.parent / STAGE)
            if (place / "scores.json").is_file()
        ),
        None,
    )
    if evaluation is None:
        raise UserError(
            f"{name} has no evaluation: {folder / STAGE / 'scores.json'} is not there; run stage {STAGE}, or "
            "name a recipe or a folder of artifacts that has one"
        )
    scores, items = (_read(evaluation / file) for file in ("scores.json", "items.json"))
    known = _known(scores, evaluation)
    one = evaluation == folder.parent / STAGE and folder.name != STAGE
    checkpoint = folder.name if one else known.checkpoints[-1]
    if checkpoint not in known.checkpoints:
        raise UserError(f"{evaluation} did not score {checkpoint} (it scored {', '.join(known.checkpoints)})")
    if not isinstance(items, dict) or not isinstance(items.get(checkpoint), dict):
        raise UserError(f"{evaluation / 'items.json'} {AGAIN.format(checkpoint)}")
    if not all(isinstance(of_suite, dict) for of_suite in items[checkpoint].values()):
        raise UserError(f"{evaluation / 'items.json'} {AGAIN.format(checkpoint)}")
    identities = scores.get("checkpoints")
    identity = identities.get(checkpoint) if isinstance(identities, dict) else None
    title = f"{evaluation.parent.name}/{checkpoint}" + (f" ({str(identity)[:SHOWN]})" if identity else "")
    return Side(title, checkpoint, known, items[checkpoint])


def _may_be_of_a_recipe(name: str) -> bool:
    """Whether it is of the form ``recipe`` or ``recipe/stage``, and not a path."""
    return not name.startswith(("/", ".")) and len(Path(name).parts) <= 2


def _known(scores: Any, evaluation: Path) -> Scores:
    """The scores of a file; ``UserError`` where it holds none."""
    try:
        known = Scores.read(scores)
        if known.checkpoints and all(map(_is_row, known.rows)):
            return known
    except (AttributeError, KeyError, TypeError):
        pass
    raise UserError(f"{evaluation / 'scores.json'} {AGAIN.format('any checkpoint')}")


def _is_row(row: dict[str, Any]) -> bool:
    texts = all(isinstance(row[key], str) for key in TEXTS)
    return texts and all(row[key] is None or _is_number(row[key]) for key in NUMBERS)


def _values(kept: Any) -> tuple[list[float], list[float]] | None:
    """Of an entry of items.json a number for each item, and what to divide it by; None where they are not
    there.
    """
    if not isinstance(kept, dict) or "proportion" not in kept:
        return None
    numerators = kept.get("values", kept.get("numerators"))
    if not _are_numbers(numerators):
        return None
    denominators = kept.get("denominators", [1.0] * len(numerators))
    whole = _are_numbers(denominators) and len(denominators) == len(numerators)
    return (numerators, denominators) if whole else None


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def comparable(a: Side, b: Side) -> list[str]:
    """The suites that both have. Raises ``UserError`` where there is none, or one of unlike protocols."""
    pa, pb = a.protocols(), b.protocols()
    shared = [suite for suite in pa if suite in pb]
    unlike = [suite for suite in shared if pa[suite] != pb[suite]]
    if unlike or not shared:
        which = (
            ", ".join(f"{s} ({pa[s][:SHOWN]} and {pb[s][:SHOWN]})" for s in unlike) or "no suite in common"
        )
        raise UserError(
            f"{a.title} and {b.title} were not scored under one protocol: {which}; score both with the same "
            "evaluation sets and settings of evaluate"
        )
    return shared


def hash_of(side: Side, suites: list[str]) -> str:
    """One hash of the protocols of several suites."""
    return artifacts.digest_of({suite: side.protocols()[suite] for suite in suites})


def _rows(a: Side, b: Side, found: list[dict[str, Any]]):
    by_key = {(change["suite"], change["name"]): change for change in found}
    for line in a.scores.lines():
        if change := by_key.get((line.suite, line.name)):
            yield _row(line, line.label, a, b, change)
    for suite, name in by_key:
        if suite == FAMILY_LINE.suite and name.startswith(FAMILY):
            label = f"  {name.removeprefix(FAMILY)}"
            yield _row(FAMILY_LINE, label, a, b, by_key[suite, name])


def _row(line: Line, label: str, a: Side, b: Side, change: dict[str, Any]) -> tuple[str, ...]:
    values = [
        formats.score(side.scores.get(side.checkpoint, change["suite"], change["name"])["value"], line.kind)
        for side in (a, b)
    ]
    low, high = change["low"], change["high"]
    known = low is not None and abs(low) < float("inf")
    bounds = f"{difference(low, line)} to {difference(high, line)}" if known else "one item"
    word = verdict(change, line.lower_is_better) if known else "even"
    said = (
        {"better": "better", "worse": "worse", "even": "not significant"}[word]
        if change["change"]
        else "equal"
    )
    return (label, *values, difference(change["change"], line), bounds, str(change["n"]), said)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in (0, 6) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} is not there: the evaluation kept no values by item; run stage {STAGE} with --force"
        ) from None
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read: run stage {STAGE} again with --force") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.reporting.compare", description=__doc__)
    parser.add_argument("first")
    parser.add_argument("second")
    arguments = parser.parse_args()
    run_command(lambda: print(compare(arguments.first, arguments.second)))


if __name__ == "__main__":
    main()
