"""What a stage of reinforcement learning is given when a benchmark runs its loop with no graph around it."""

from pathlib import Path

from pipeline.progress import Progress
from pipeline.recipe.rl import RlSection
from pipeline.stage import Context
from pipeline.tracking import Metrics


def bare_context(folder: Path, stage: str, section: RlSection, seed: int) -> Context:
    """Output and scratch of the stage are new folders in ``folder``; it has no inputs."""
    out, scratch = folder / "out", folder / "run"
    out.mkdir(parents=True)
    scratch.mkdir()
    return Context(
        stage, None, section, seed, {}, {}, out, scratch, "", Progress(scratch, stage),
        Metrics(scratch, "benchmark", stage, "0" * 64, {}, {}),
    )  # fmt: skip
