"""What the stages of reinforcement learning set up alike: tasks in modes, difficulty, services."""

import copy
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.interface import Task
from model.chat.tokenizer import Tokenizer
from model.inference.weights import for_inference
from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.files import write_whole
from pipeline.recipe.rl import ModeWeights, RlSection
from pipeline.stage import Context
from tasks.rl.catalog import CatalogConfig, open_catalog
from tasks.rl.difficulty import Pair, curriculum, solve_rates
from tasks.rl.orchestrator import Window
from tasks.rl.rollout import Limits
from tasks.rl.worker import ServiceConfig


def read_tasks(path: Path, families: Sequence[str]) -> dict[str, list[Task]]:
    """The tasks of a file by family, those of ``families``. Raises ``UserError`` for a family without any."""
    found: dict[str, list[Task]] = {name: [] for name in families}
    for line in path.read_text(encoding="utf-8").splitlines():
        task = Task.from_record(json.loads(line))
        found.get(f"{task.environment}/{task.family}", []).append(task)
    for name, tasks in found.items():
        if not tasks:
            raise UserError(f"{path} has no task of {name}: add the family to rl_tasks.families")
    return found


def families_of(section: RlSection) -> list[str]:
    """Those that the recipe gives weight."""
    return [name for name, weight in section.families.items() if weight]


def tasks_in_modes(context: Context) -> dict[str, list[Pair]]:
    """Of the section's families the tasks of stage rl_tasks, each in a thinking mode."""
    section: RlSection = context.section
    tasks = read_tasks(context.inputs["rl_tasks"] / "tasks.jsonl", families_of(section))
    return {name: in_modes(found, section.modes, context.seed) for name, found in tasks.items()}


def in_modes(tasks: Sequence[Task], modes: ModeWeights, seed: int) -> list[Pair]:
    """Each task in one thinking mode, drawn by weight."""
    rng = random.Random(f"{seed}/modes")
    return [(task, rng.choices(list(modes), list(modes.values()))[0]) for task in tasks]


def graded(
    context: Context,
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: dict[str, list[Pair]],
    samples: int,
    catalog: CatalogConfig | None = None,
) -> tuple[dict[str, list[Pair]], dict[str, float]]:
    """Of each family the tasks that are not always solved, the easiest first, and the share of its tasks that
    are solved sometimes; a family without any of those is left out. The rates go to the stage's facts.

    Kept in the scratch folder: a stage that is started again does not measure twice. Raises ``UserError``
    where no task of any family is solved sometimes.
    """
    path = context.scratch / "solve_rates.json"
    flat = [(name, pair) for name, family in pairs.items() for pair in family]
    rates = _kept_rates(path, len(flat))
    if rates is None:
        section: RlSection = context.section
        # On CUDA of a copy as the engines have it: in the trainer's floats every pass waits for the device.
        policy = for_inference(copy.deepcopy(model)) if model.embed.weight.is_cuda else model
        rates = solve_rates(
            policy.eval(), tokenizer, open_catalog(catalog or CatalogConfig()), [pair for _, pair in flat],
            samples=samples, max_new_tokens=section.rollouts.max_new_tokens, seed=context.seed,
            limits=limits_of(section),
            at_once=section.rollouts.at_once, decode=section.rollouts.decode,
            tell=lambda done: context.progress.update("difficulty", done, len(flat), "tasks"),
        )  # fmt: skip
        write_whole(path, json.dumps(rates))
    chosen, shares = {}, {}
    for name in pairs:
        own = [rate for (family, _), rate in zip(flat, rates, strict=True) if family == name]
        found, counts = curriculum(pairs[name], own)
        context.facts |= {f"difficulty/{name}/{key}": value for key, value in counts.items()}
        if counts["sometimes"]:
            chosen[name], shares[name] = found, counts["sometimes"] / len(pairs[name])
    if not chosen:
        raise UserError(
            f"of {len(flat)} tasks none was solved in some of {samples} samples and not in others: there is "
            "nothing to learn from: choose families that are half learnt, or set difficulty_samples to 0"
        )
    return chosen, shares


def _kept_rates(path: Path, count: int) -> list[float | None] | None:
    """The rates of an earlier run of the stage; None where there are none, or others than ``count``."""
    try:
        rates = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        rates = None
    whole = isinstance(rates, list) and len(rates) == count
    if whole and all(rate is None or isinstance(rate, int | float) for rate in rates):
        return rates
    print(f"{path} is damaged: the tasks are tried again", flush=True)
    return None


def services_of(
    context: Context, pairs: dict[str, list[Pair]], weights: Mapping[str, float] | None = None
) -> list[ServiceConfig]:
    """A service for each name in ``pairs``, a family or several together, its tasks in a file of the run's
    folder. ``weights``: None for those of the section's families. Raises ``UserError`` for a program of the
    section that is not on this machine.
    """
    section: RlSection = context.section
    for name, command in section.rollouts.programs.items():
        if shutil.which(command[0]) is None:
            raise UserError(
                f"{context.stage}.rollouts.programs: {command[0]!r}, the agent of {name}, is no program "
                "on this machine: install it, or give its path"
            )
    weights = section.families if weights is None else weights
    services = []
    for name, family in pairs.items():
        path = context.scratch / "tasks" / f"{name.replace('/', '.')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({**task.to_record(), "mode": mode}) for task, mode in family]
        path.write_text("".join(f"{line}\n" for line in lines))
        services.append(
            ServiceConfig(
                name=name, weight=weights[name], tasks=path, turns=section.rollouts.turns,
                seconds=section.rollouts.seconds, program=section.rollouts.programs.get(name, []),
            )
        )  # fmt: skip
    return services


def limits_of(section: RlSection) -> Limits:
    return Limits(turns=section.rollouts.turns, seconds=section.rollouts.seconds)


def easier_half_first(section: RlSection, share: float) -> list[Window]:
    """For ``share`` of the steps the easier half of the tasks alone."""
    groups = int(section.steps * share) * section.rollouts.prompts_per_step
    return [Window(groups, 0.0, 0.5)] if groups else []
