"""A quantised model beside the one that it was made from: every score, and the perplexity."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.evaluation.changes import changes, perplexity_change
from tasks.evaluation.scorecard import Scorecard


def beside_parents(
    card: Scorecard, folders: Mapping[str, Path], records: Mapping[str, dict], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Paired differences as ``changes`` gives them, of each quantised checkpoint and its parent: the last of
    the recipe's checkpoints that its stage read. Beside them a row ``perplexity``, relative.
    """
    pairs = []
    for name in names:
        read = [other for other in names if other in records[name].get("inputs", {}) and other != name]
        if read and is_quantised(folders[name]):
            pairs.append((read[-1], name))
    rows = changes(card.results, card.protocols, pairs)
    return [*perplexity_change(rows), *rows]


def is_quantised(folder: Path) -> bool:
    return "quantization_config" in json.loads((folder / "config.json").read_text())
