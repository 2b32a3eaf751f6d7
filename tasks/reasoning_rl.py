"""Reasoning RL: GRPO with IcePop on verifiable tasks of several domains (paper section 3.2).

    python -m tasks.reasoning_rl --recipe tiny

Rollouts are synchronous and on policy, one update a batch; there is no KL term. The indexer is frozen, its
selection deterministic, and the experts of the rollout are replayed.
"""

import shutil

from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.recipe.rl import ReasoningRlSection
from pipeline.stage import Context, run_stage
from tasks.rl.catalog import CatalogConfig, in_sandboxes
from tasks.rl.groups import normalised
from tasks.rl.losses.icepop import IcePop
from tasks.rl.selection import by_reward
from tasks.rl.setup import easier_half_first, graded, in_modes, read_tasks, services_of
from tasks.rl.trainer import TRAJECTORIES, RlJob, train_policy
from tasks.training.output import write_checkpoint
from tasks.training.setup import load_model, pick_device


def run(context: Context) -> dict[str, float]:
    """Train the fine-tuned model on what it solves sometimes."""
    section: ReasoningRlSection = context.section
    start = context.inputs["sft"]
    model, tokenizer = load_model(start, pick_device()), Tokenizer.load(start)
    families = [name for name, weight in section.families.items() if weight]
    tasks = read_tasks(context.inputs["rl_tasks"] / "tasks.jsonl", families)
    pairs = {name: in_modes(found, section.modes, context.seed) for name, found in tasks.items()}
    catalog = CatalogConfig(sandbox=in_sandboxes(families))
    weights = section.families
    if section.difficulty_samples:
        pairs, shares = graded(context, model, tokenizer, pairs, section.difficulty_samples, catalog)
        # What is nearly all learnt, or hardly at all, gets fewer steps.
        weights = {name: section.families[name] * share for name, share in shares.items()}
    values = train_policy(
        RlJob(
            context, model, start, tokenizer.ids_by_name[END_OF_TEXT], services_of(context, pairs, weights),
            IcePop(section.beta, section.eps_low, section.eps_high), by_reward(section, normalised),
            easier_half_first(section, section.easy_share) if section.difficulty_samples else [],
            catalog=catalog,
        )
    )  # fmt: skip
    write_checkpoint(context, model, start)
    shutil.copyfile(context.scratch / TRAJECTORIES, context.out / TRAJECTORIES)
    return values


if __name__ == "__main__":
    run_stage("reasoning_rl", run)
