"""On-policy cross-stage distillation: what later stages forgot comes back from their forerunners (paper 3.5).

    python -m tasks.distill --recipe tiny

The model of general RL samples; the final checkpoints of SFT, reasoning RL and general RL, and of agentic RL
where the recipe says so, tell how likely they find each token, every one for prompts of its own set. There is
no reward: the environments' verdicts are logged alone.
"""

from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.recipe.rl import DistillSection
from pipeline.stage import Context, run_stage
from tasks.rl.catalog import CatalogConfig, in_sandboxes
from tasks.rl.losses.distillation import Distillation
from tasks.rl.losses.icepop import IcePop
from tasks.rl.output import write_policy
from tasks.rl.setup import families_of, services_of, tasks_in_modes
from tasks.rl.teachers import Teachers, by_teacher
from tasks.rl.trainer import RlJob, train_policy
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model

STUDENT = "general_rl"


def run(context: Context) -> dict[str, float]:
    """Train the model of general RL towards its teachers, on its own samples."""
    section: DistillSection = context.section
    start, device = context.inputs[STUDENT], pick_device()
    model, tokenizer = load_model(start, device), Tokenizer.load(start)
    pairs = tasks_in_modes(context)
    folders = {name: context.inputs[name] for name in section.teachers}
    teachers = Teachers.load(folders, section.teacher_of, start, device)
    values = train_policy(
        RlJob(
            context, model, start, tokenizer.ids_by_name[END_OF_TEXT], services_of(context, pairs),
            Distillation(IcePop(section.beta, section.eps_low, section.eps_high)),
            by_teacher(section, teachers), catalog=CatalogConfig(sandbox=in_sandboxes(families_of(section))),
        )
    )  # fmt: skip
    write_policy(context, model, start)
    return values


if __name__ == "__main__":
    run_stage("distill", run)
