"""General RL: rules, a reward model and a judge beside verifiable tasks (paper section 3.4).

    python -m tasks.general_rl --recipe tiny

The reward model is trained first, from the same checkpoint as the policy, on pairs that are made here. The
paper names neither loss nor weights of this stage: ours is GRPO with IcePop, synchronous. Advantages are
rewards less their group's mean, not divided by its deviation: where all rollouts solve a task, that would
blow the reward model's noise up to the size of a right answer.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from environments.catalog import environments
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline.files import write_whole
from pipeline.recipe.rl import GeneralRlSection
from pipeline.stage import Context, run_stage
from tasks.rl.catalog import CatalogConfig, in_sandboxes
from tasks.rl.difficulty import Pair as TaskAndMode
from tasks.rl.groups import centred
from tasks.rl.losses.icepop import IcePop
from tasks.rl.output import write_policy
from tasks.rl.rewards.combine import RewardsConfig
from tasks.rl.rewards.preferences import PairMaker, anchors, split
from tasks.rl.rewards.reward_model import FIGURES, finished, train_reward_model
from tasks.rl.selection import by_reward
from tasks.rl.setup import families_of, services_of, tasks_in_modes
from tasks.rl.trainer import RlJob, train_policy
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model

MOST_ANCHOR_TEXTS = 2000


def run(context: Context) -> dict[str, float]:
    """Train the reward model, then the policy on what rules, model, judge and environments say."""
    section: GeneralRlSection = context.section
    start = context.inputs["agentic_rl"]
    model, tokenizer = load_model(start, pick_device()), Tokenizer.load(start)
    pairs = tasks_in_modes(context)
    folder = context.scratch / "reward_model" if section.reward_model is not None else None
    if folder is not None:
        every = [pair for found in pairs.values() for pair in found]
        figures = finished(folder) or learn_rewards(context, tokenizer, every, folder)
        context.facts |= {f"reward_model/{name}": value for name, value in figures.items()}
    path = context.scratch / "rewards.json"
    write_whole(path, RewardsConfig.of(section, folder).model_dump_json())
    services = [one.model_copy(update={"rewards": path}) for one in services_of(context, pairs)]
    values = train_policy(
        RlJob(
            context, model, start, tokenizer.ids_by_name[END_OF_TEXT], services,
            IcePop(section.beta, section.eps_low, section.eps_high), by_reward(section, centred),
            catalog=CatalogConfig(sandbox=in_sandboxes(families_of(section))),
        )
    )  # fmt: skip
    write_policy(context, model, start)
    if folder is not None:
        shutil.copyfile(folder / FIGURES, context.out / FIGURES)
    return values


def learn_rewards(
    context: Context, tokenizer: Tokenizer, tasks: Sequence[TaskAndMode], folder: Path
) -> dict[str, float]:
    """Make the pairs and train the model on them; its figures on the held-out ones."""
    section: GeneralRlSection = context.section
    settings, start = section.reward_model, context.inputs["agentic_rl"]
    trunk = load_model(start, pick_device())
    maker = PairMaker(tokenizer, environments(), section.sequence_length)
    pairs = maker.pairs(tasks, settings.pairs, context.seed)
    texts = prose(context.inputs["curate"] / "documents") if settings.anchors else []
    pairs += anchors(
        trunk.eval(), tokenizer, texts, settings.anchors, settings.anchor_tokens, context.seed
    )  # fmt: skip
    train, heldout = split(pairs, settings.heldout, context.seed)

    def tell(done: int, total: int, loss: float) -> None:
        context.progress.update("reward model", done, total, "step", f"loss {loss:.3f}")

    return train_reward_model(trunk, train, heldout, settings, folder, context.seed, tell)


def prose(folder: Path) -> list[str]:
    """Texts that people wrote, of the curated documents."""
    texts: list[str] = []
    for path in sorted(folder.glob("*.parquet")):
        rows = pq.read_table(path, columns=["text"], filters=[("kind", "=", "prose")])
        texts += rows.column("text").to_pylist()
        if len(texts) >= MOST_ANCHOR_TEXTS:
            break
    return texts[:MOST_ANCHOR_TEXTS]


if __name__ == "__main__":
    run_stage("general_rl", run)
