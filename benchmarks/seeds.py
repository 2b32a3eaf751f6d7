"""What a recipe reaches over several training seeds: the mean and range of each score.

    python -m benchmarks.seeds --recipe tiny --seeds 0 1 2 --set evaluate.sampled_items_per_family=40

Seeds share their data: artifacts of the data stages are linked from the recipe itself, which must have run.
Each seed's chain runs under ``artifacts/<recipe>-seed<n>/`` and goes on where it was stopped. Writes
``benchmarks/results/<recipe>_seeds.json`` and Markdown tables beside it, gains of RL among them.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from benchmarks import gains
from pipeline import artifacts
from pipeline.errors import UserError, run_command
from pipeline.graph import load_graph
from pipeline.recipe import load_recipe
from tasks.reporting.scores import LINES

RESULTS = Path("benchmarks/results")
LEARNT = 0.8  # exact match on held-out tasks of a family
Row = tuple[str, str, str]  # checkpoint, suite, score


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE",
        help="another value in each recipe, of evaluate alone: seed 0 is the recipe's own run",
    )  # fmt: skip
    arguments = parser.parse_args()
    if len(set(arguments.seeds)) < 2:
        raise UserError("--seeds takes at least two seeds: one says nothing about others")
    if foreign := [text for text in arguments.assignments if not text.startswith("evaluate.")]:
        raise UserError(f"--set takes values of evaluate alone, not {foreign[0]}")
    # One thread a run: on few cores two runs side by side do more than one run on both.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda seed: run_seed(arguments.recipe, seed, arguments.assignments), arguments.seeds))
    names = [seed_name(arguments.recipe, seed) for seed in arguments.seeds]
    scores = collect_scores(names)
    result = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "recipe": load_recipe(arguments.recipe).model_dump(mode="json"),
        "seeds": arguments.seeds,
        "set": arguments.assignments,
        "gains": gains.gains(load_recipe(arguments.recipe), names),
        "scores": [[*row, values] for row, values in scores.items()],
        "stages": {name: stage_facts(name) for name in names},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{arguments.recipe}_seeds.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    table = render(scores) + "\n" + gains.render(result["gains"])
    path.with_suffix(".md").write_text(table)
    print(table)


def seed_name(recipe: str, seed: int) -> str:
    return f"{recipe}-seed{seed}"


def run_seed(recipe: str, seed: int, assignments: list[str]) -> None:
    """Run the training chain of one seed on the recipe's own data."""
    name = seed_name(recipe, seed)
    path = Path("runs/seeds") / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"extends: {recipe}\nseed: {seed}\n")
    same_seed = load_recipe(recipe).seed == seed
    for stage in load_graph().values():
        if "data_seed" in stage.sections or (same_seed and stage.name not in ("evaluate", "report")):
            link_artifact(
                artifacts.artifact_dir(recipe, stage.name), artifacts.artifact_dir(name, stage.name)
            )
    command = [sys.executable, "-m", "flows.cli", "run", "--recipe", str(path)]
    command += [word for text in assignments for word in ("--set", text)]
    ended = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if ended.returncode:
        raise UserError(f"the run of seed {seed} failed: see runs/{name}/*/log.txt")


def link_artifact(source: Path, target: Path) -> None:
    """A hard-linked copy of a finished artifact."""
    artifacts.verify(source)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)


def collect_scores(names: list[str]) -> dict[Row, list[float]]:
    """Every score that all seeds have, with its values in the order of the seeds."""
    tables = []
    for name in names:
        rows = json.loads((artifacts.artifact_dir(name, "evaluate") / "scores.json").read_text())["rows"]
        tables.append({(row["checkpoint"], row["suite"], row["name"]): row["value"] for row in rows})
    return {
        key: [table[key] for table in tables] for key in tables[0] if all(key in table for table in tables)
    }


def stage_facts(name: str) -> dict[str, dict]:
    """Seconds, tokens and final metrics of each stage of a seed."""
    facts = {}
    for stage in load_graph():
        record = artifacts.read_record(artifacts.artifact_dir(name, stage))
        if record:
            facts[stage] = {"seconds": round(record["seconds"], 1), "metrics": record["metrics"]}
    return facts


def render(scores: dict[Row, list[float]]) -> str:
    """The lines of the report, then the families of the last checkpoint; all scores are in the JSON."""
    titles = {(line.suite, line.name): line.label for line in LINES}
    last = list(scores)[-1][0]
    return "\n".join(
        [
            *_table(
                ((f"{key[0]}: {titles[key[1:]]}", v) for key, v in scores.items() if key[1:] in titles),
                "score",
            ),
            "",
            *_table(_families(scores, last), f"{last}: exact match"),
            "",
            f"Families of {last} with at least {LEARNT:.0%} exact match, by seed: {_learnt(scores, last)}.",
            "",
        ]
    )


def _table(rows: Iterable[tuple[str, list[float]]], first: str) -> list[str]:
    lines = [f"| {first} | mean | lowest | highest |", "|---|---|---|---|"]
    for name, values in rows:
        numbers = [statistics.fmean(values), min(values), max(values)]
        lines.append(" | ".join([f"| {name}", *(f"{x:.4g}" for x in numbers)]) + " |")
    return lines


def _families(scores: dict[Row, list[float]], checkpoint: str) -> list[tuple[str, list[float]]]:
    prefix = "exact/all/"
    return [
        (name.removeprefix(prefix), values)
        for (of, _, name), values in scores.items()
        if of == checkpoint and name.startswith(prefix)
    ]


def _learnt(scores: dict[Row, list[float]], checkpoint: str) -> str:
    by_seed = zip(*(values for _, values in _families(scores, checkpoint)), strict=True)
    return ", ".join(str(sum(value >= LEARNT for value in seed)) for seed in by_seed)


if __name__ == "__main__":
    run_command(main)
