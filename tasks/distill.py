"""On-policy cross-stage distillation: what later stages forgot comes back from their forerunners (paper 3.5).

    python -m tasks.distill --recipe tiny

The model of general RL samples; the final checkpoints of SFT, reasoning RL and general RL say how likely they
find each token, every one for prompts of its own set. There is no reward: the environments' verdicts are
logged alone.
"""

import shutil

from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.recipe.rl import DistillSection
from pipeline.stage import Context, run_stage
from tasks.rl.catalog import CatalogConfig, in_sandboxes
from tasks.rl.losses.distillation import Distillation
from tasks.rl.losses.icepop import IcePop
from tasks.rl.setup import in_modes, read_tasks, services_of
from tasks.rl.teachers import Teachers, by_teacher
from tasks.rl.trainer import TRAJECTORIES, RlJob, train_policy
from tasks.training.output import write_checkpoint
from tasks.training.setup import load_model, pick_device

STUDENT = "general_rl"


def run(context: Context) -> dict[str, float]:
    """Train the model of general RL towards its teachers, on its own samples."""
    section: DistillSection = context.section
    start, device = context.inputs[STUDENT], pick_device()
    model, tokenizer = load_model(start, device), Tokenizer.load(start)
    families = [name for name, weight in section.families.items() if weight]
    tasks = read_tasks(context.inputs["rl_tasks"] / "tasks.jsonl", families)
    pairs = {name: in_modes(found, section.modes, context.seed) for name, found in tasks.items()}
    folders = {name: context.inputs[name] for name in section.teachers}
    teachers = Teachers.load(folders, section.teacher_of, start, device)
    values = train_policy(
        RlJob(
            context, model, start, tokenizer.ids_by_name[END_OF_TEXT], services_of(context, pairs),
            Distillation(IcePop(section.beta, section.eps_low, section.eps_high)),
            by_teacher(section, teachers), catalog=CatalogConfig(sandbox=in_sandboxes(families)),
        )
    )  # fmt: skip
    write_checkpoint(context, model, start)
    shutil.copyfile(context.scratch / TRAJECTORIES, context.out / TRAJECTORIES)
    return values


if __name__ == "__main__":
    run_stage("distill", run)
