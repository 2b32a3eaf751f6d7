"""Reasoning RL: GRPO with IcePop on verifiable tasks of several domains (paper section 3.2).

    python -m tasks.reasoning_rl --recipe tiny

Rollouts are synchronous and on policy, one update a batch; there is no KL term. The indexer is frozen, its
selection deterministic, and the experts of the rollout are replayed.
"""

from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.recipe.rl import ReasoningRlSection
from pipeline.stage import Context, run_stage
from tasks.rl.catalog import CatalogConfig, in_sandboxes
from tasks.rl.groups import normalised
from tasks.rl.losses.icepop import IcePop
from tasks.rl.output import write_policy
from tasks.rl.selection import by_reward
from tasks.rl.setup import easier_half_first, families_of, graded, services_of, tasks_in_modes
from tasks.rl.trainer import RlJob, train_policy
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model


def run(context: Context) -> dict[str, float]:
    """Train the fine-tuned model on what it solves sometimes."""
    section: ReasoningRlSection = context.section
    start = context.inputs["sft"]
    model, tokenizer = load_model(start, pick_device()), Tokenizer.load(start)
    pairs = tasks_in_modes(context)
    catalog = CatalogConfig(sandbox=in_sandboxes(families_of(section)))
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
    write_policy(context, model, start)
    return values


if __name__ == "__main__":
    run_stage("reasoning_rl", run)
